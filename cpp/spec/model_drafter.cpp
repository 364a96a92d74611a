#include "spec/model_drafter.h"

#include <algorithm>

#include "core/errors.h"
#include "spec/check_options.h"

namespace agentkv {
namespace {

// Fewer new tokens than this wait for the next round, whose first level takes them along.
constexpr Pos kLeastPrefill = 16;

}  // namespace

ModelDrafter::ModelDrafter(std::shared_ptr<Program> program, std::shared_ptr<TreeSeqCache> cache, TreeOptions options)
    : program_(checked(std::move(program), "program")),
      cache_(checked(std::move(cache), "tree cache")),
      lines_(cache_),
      round_(*cache_, program_->info().max_tokens, program_->info().max_logits, checked(options)),
      prefill_(*cache_, program_->info().max_tokens, program_->info().max_logits) {}

void ModelDrafter::propose(std::span<DraftRequest> requests) {
  round_.begin();
  for (DraftRequest& request : requests) {
    Line* line = request.history.empty() ? nullptr : lines_.open(request.branch);
    if (!line) continue;
    reconcile(*line, request.history);
    const auto missing = request.history.subspan(line->log.size());
    if (static_cast<Cell>(missing.size()) > round_.free_cells()) lines_.drop_nodes();
    if (static_cast<Cell>(missing.size()) > round_.free_cells()) continue;
    round_.add(request, line->seq, line->tree);
    for (std::size_t i = 0; i < missing.size(); ++i) round_.feed(missing[i], i + 1 == missing.size());
    line->log.insert(line->log.end(), missing.begin(), missing.end());
    line->known = static_cast<Pos>(request.history.size()) - 1;  // the last one may be taken back
  }
  round_.run([this](const LevelRows& rows, std::span<const std::int32_t>) { return forward(rows); });
}

// Drops what the branch no longer says and takes over what the last draft got right, so that the log is a prefix of
// the history, without its last token at least: the row of that one is what the next draft begins with.
void ModelDrafter::reconcile(Line& line, std::span<const Token> history) {
  line.log.resize(static_cast<std::size_t>(cache_->seq_len(line.seq)));  // a round that failed fed less
  const auto known = std::min({static_cast<std::size_t>(line.known), line.log.size(), history.size()});
  const auto [held, said] = std::mismatch(line.log.begin() + static_cast<std::ptrdiff_t>(known), line.log.end(),
                                          history.begin() + static_cast<std::ptrdiff_t>(known), history.end());
  if (held != line.log.end() || said == history.end()) {
    const auto same = static_cast<Pos>(held - line.log.begin());
    keep(line, std::min(same, static_cast<Pos>(history.size()) - 1));
  } else {
    accept(line, history);
  }
}

void ModelDrafter::accept(Line& line, std::span<const Token> history) {
  chain_.clear();
  for (std::int32_t node = -1; line.log.size() + 1 < history.size();) {
    node = line.tree.child_that_ran(node, history[line.log.size()]);
    if (node < 0) break;
    chain_.push_back(line.tree.place(node));
    line.log.push_back(line.tree.token(node));
  }
  line.tree.clear();
  if (cache_->frontier_size(line.seq) > 0) {
    cache_->commit(chain_, static_cast<std::int32_t>(chain_.size()), line.seq);
  }
}

void ModelDrafter::keep(Line& line, Pos length) {
  line.tree.clear();
  lines_.truncate(line, length);
  line.log.resize(static_cast<std::size_t>(cache_->seq_len(line.seq)));
  line.known = std::min(line.known, length);
}

std::span<const float> ModelDrafter::forward(const LevelRows& rows) {
  return program_->forward(rows.tokens, rows.positions, rows.logits_indices);
}

// Keeps up with prompts as the target runs them. What goes wrong here is left to propose, which tries again.
void ModelDrafter::observe(BranchId branch, Pos first, std::span<const Token> tokens, std::span<const float>) {
  const Pos end = first + static_cast<Pos>(tokens.size());
  if (static_cast<Pos>(tokens.size()) < kLeastPrefill) return;
  Line* line = lines_.open(branch);
  if (!line) return;
  const Pos held = cache_->seq_len(line->seq);
  if (first > held || end - held < kLeastPrefill) return;
  const auto overlap = tokens.first(static_cast<std::size_t>(held - first));
  line->log.resize(static_cast<std::size_t>(held));
  if (!std::equal(overlap.begin(), overlap.end(), line->log.begin() + first)) return;
  keep(*line, held);  // without the draft's nodes: few of them are in a text of this length
  const auto fresh = tokens.subspan(overlap.size());
  prefill_.clear();
  if (static_cast<Cell>(fresh.size()) > prefill_.free_cells()) return;
  for (const Token token : fresh) prefill_.add_plain(line->seq, token, false);
  try {
    prefill_.run([this](const LevelRows& rows) { return forward(rows); },
                 [](const LevelRows&, std::span<const float>) {});
  } catch (const Error&) {
  }
  line->log.insert(line->log.end(), fresh.begin(), fresh.end());
  line->log.resize(static_cast<std::size_t>(cache_->seq_len(line->seq)));
  line->known = static_cast<Pos>(line->log.size());
}

void ModelDrafter::shared(BranchId src, BranchId dst, Pos length) {
  lines_.close(dst);
  Line* from = lines_.find(src);
  if (!from) return;
  const Pos held = std::min(length, cache_->seq_len(from->seq));
  Line* to = held > 0 ? lines_.open(dst) : nullptr;
  if (!to) return;
  cache_->seq_cp(from->seq, to->seq, 0, held);
  to->log.assign(from->log.begin(), from->log.begin() + held);
  to->known = std::min(from->known, held);
}

void ModelDrafter::truncated(BranchId branch, Pos length) {
  Line* line = lines_.find(branch);
  if (!line) return;
  if (length < cache_->seq_len(line->seq)) keep(*line, length);
  line->known = std::min(line->known, length);
}

DraftStats ModelDrafter::stats() const {
  return {.levels = round_.levels(),
          .forwards = round_.forwards(),
          .prefills = prefill_.forwards(),
          .seconds = round_.seconds() + prefill_.seconds()};
}

}  // namespace agentkv
