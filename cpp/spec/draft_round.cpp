#include "spec/draft_round.h"

#include <algorithm>

namespace agentkv {

DraftRound::DraftRound(TreeSeqCache& cache, std::int32_t max_tokens, std::int32_t max_logits, TreeOptions options,
                       std::vector<Token> target_of)
    : cache_(cache), options_(options), target_of_(std::move(target_of)), level_(cache, max_tokens, max_logits) {}

void DraftRound::begin() {
  level_.clear();
  branches_.clear();
  logits_rows_.clear();
  sources_.clear();
  absorbed_ = 0;
}

void DraftRound::add(DraftRequest& request, SeqId seq, DraftTree& tree) {
  if (options_.depth > 0) request.max_depth = std::min(request.max_depth, options_.depth);
  branches_.push_back({&request, seq, &tree});
}

void DraftRound::feed(Token token, bool last) {
  level_.add_plain(branches_.back().seq, token, last);
  if (last) logits_rows_.push_back({static_cast<std::uint32_t>(branches_.size() - 1), -1});
}

void DraftRound::absorb(const LevelRows& rows, std::span<const float> logits) {
  const std::size_t n_rows = rows.logits_indices.size();
  const std::size_t vocab = n_rows == 0 ? 0 : logits.size() / n_rows;
  const std::size_t known = options_.vocab_size > 0 ? std::min<std::size_t>(vocab, options_.vocab_size) : vocab;
  for (std::size_t i = 0; i < n_rows; ++i, ++absorbed_) {
    const auto [branch, node] = logits_rows_[absorbed_];
    const auto children = likely_.of(logits.subspan(i * vocab, known), options_.top_k);
    branches_[branch].tree->grow(node, static_cast<std::int32_t>(absorbed_), children, target_of_);
  }
}

void DraftRound::next_level() {
  level_.clear();
  logits_rows_.clear();
  sources_.clear();
  absorbed_ = 0;
  for (std::size_t i = 0; i < branches_.size(); ++i) {
    Branch& branch = branches_[i];
    branch.grows = branch.grows && branch.depth < branch.request->max_depth && level_.free_cells() >= options_.width;
    if (!branch.grows) continue;
    // A row here, and one of the target for what follows from it.
    const float least = std::max(options_.min_reach, 2 * branch.request->row_worth);
    const auto nodes = branch.tree->choose(options_.width, least, branch.request->level_worth);
    branch.grows = !nodes.empty();
    branch.depth += branch.grows;
    for (const std::int32_t node : nodes) {
      level_.add_node(branch.seq, branch.tree->token(node), branch.tree->parent_place(node));
      logits_rows_.push_back({static_cast<std::uint32_t>(i), node});
      sources_.push_back(branch.tree->row(node));
    }
  }
}

void DraftRound::abandon() {
  for (const Branch& branch : branches_) {
    branch.tree->clear();
    cache_.commit({}, 0, branch.seq);
  }
}

}  // namespace agentkv
