#include "spec/prompt_lookup.h"

#include <algorithm>
#include <numeric>

#include "spec/check_options.h"

namespace agentkv {
namespace {

constexpr std::int32_t kMaxNgram = 1024;
constexpr float kLeastConfidence = 1e-6f;

const PromptLookupOptions& checked(const PromptLookupOptions& options) {
  check_range("max_ngram", options.max_ngram, 1, kMaxNgram);
  check_range("min_ngram", options.min_ngram, 1, options.max_ngram);
  check_range("max_nodes", options.max_nodes, 1, INT32_MAX);
  check_range("width", options.width, 1, INT32_MAX);
  check_range("max_chain", options.max_chain, 1, INT32_MAX);
  check_range("max_tokens", options.max_tokens, NgramIndex::kLeastTokens, INT64_MAX);
  return options;
}

}  // namespace

PromptLookup::PromptLookup(const PromptLookupOptions& options)
    : TextDrafter({{checked(options).min_ngram}, options.max_ngram, options.max_tokens}), options_(options) {}

void PromptLookup::propose(std::span<DraftRequest> requests) {
  for (DraftRequest& request : requests) {
    if (request.history.empty()) continue;
    const NgramIndex::Line& line = caught_up(request.branch, request.history);
    index_.find(end_of(request), options_.max_chain, matches_);
    compared_ += static_cast<std::int64_t>(matches_.size());
    std::stable_sort(matches_.begin(), matches_.end(),
                     [](const auto& one, const auto& other) { return one.length > other.length; });
    const std::int32_t max_nodes = std::min(options_.max_nodes, request.max_nodes);
    before_.assign(1, request.history.back());
    before_.insert(before_.end(), request.forced.begin(), request.forced.end());
    nodes_.assign(1, {-1, before_.back(), 1, 1});
    leaves_ = 0;
    for (const NgramIndex::Match& match : matches_) {
      merge(match, index_.ends_at(line, match.end.document), std::min(max_nodes, request.max_depth));
    }
    request.draft = best(max_nodes);
  }
}

void PromptLookup::merge(const NgramIndex::Match& match, bool at_end, std::int32_t max_depth) {
  const std::span<const Token> after = index_.after(match.end);
  path_ = before_;
  std::int32_t parent = 0;
  for (std::int32_t depth = 0; depth < max_depth; ++depth) {
    const Token token = next_of(after, at_end, path_, depth);
    if (token < 0) return;
    path_.push_back(token);
    std::int32_t node = child_of(parent, token);
    if (node < 0) {
      Node& above = nodes_[static_cast<std::size_t>(parent)];
      const bool new_leaf = nodes_.size() == 1 || above.left < 1;
      if (new_leaf && leaves_ == options_.width) return;
      leaves_ += new_leaf;
      const auto agree = static_cast<float>(match.length + depth);
      const float confidence = std::max(kLeastConfidence, above.left * agree / (agree + 1));
      above.left /= agree + 1;
      node = static_cast<std::int32_t>(nodes_.size());
      nodes_.push_back({parent, token, confidence, above.path * confidence});
    }
    parent = node;
  }
}

std::int32_t PromptLookup::child_of(std::int32_t parent, Token token) const {
  for (auto node = static_cast<std::size_t>(parent) + 1; node < nodes_.size(); ++node) {
    if (nodes_[node].parent == parent && nodes_[node].token == token) return static_cast<std::int32_t>(node);
  }
  return -1;
}

Draft PromptLookup::best(std::int32_t max_nodes) const {
  std::vector<std::int32_t> order(nodes_.size());
  std::iota(order.begin(), order.end(), 0);
  const auto path = [this](std::int32_t node) { return nodes_[static_cast<std::size_t>(node)].path; };
  // A path is at most as likely as the one it goes through, so a stable order has parents before their children.
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t one, std::int32_t other) { return path(one) > path(other); });
  order.resize(std::min(order.size(), static_cast<std::size_t>(max_nodes) + 1));
  std::vector<std::int32_t> place(nodes_.size());
  Draft draft;
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    const auto& node = nodes_[static_cast<std::size_t>(order[rank])];
    place[static_cast<std::size_t>(order[rank])] = static_cast<std::int32_t>(rank) - 1;
    if (rank == 0) continue;  // what the draft follows
    draft.tokens.push_back(node.token);
    draft.parents.push_back(place[static_cast<std::size_t>(node.parent)]);
    draft.confidence.push_back(node.confidence);
  }
  return draft;
}

}  // namespace agentkv
