#include "spec/model_drafter.h"

#include <algorithm>

#include "core/errors.h"
#include "spec/check_options.h"

namespace agentkv {
namespace {

// Fewer new tokens than this wait for the next round, whose first level takes them along.
constexpr Pos kLeastPrefill = 16;

}  // namespace

ModelDrafter::ModelDrafter(std::shared_ptr<ModelRunner> program, std::shared_ptr<TreeSeqCache> cache,
                           TreeOptions options)
    : program_(checked(std::move(program), "program")),
      cache_(checked(std::move(cache), "tree cache")),
      vocab_size_(options.vocab_size > 0 ? std::min(options.vocab_size, program_->info().vocab_size)
                                         : program_->info().vocab_size),
      branches_(cache_),
      round_(*cache_, program_->info().max_tokens, program_->info().max_logits, checked(options)),
      prefill_(*cache_, program_->info().max_tokens, program_->info().max_logits) {}

void ModelDrafter::propose(std::span<DraftRequest> requests) {
  round_.begin();
  for (DraftRequest& request : requests) {
    FedBranch* state = request.history.empty() ? nullptr : branches_.open(request.branch);
    if (!state) continue;
    reconcile(*state, request.history);
    const auto missing = request.history.subspan(state->log.size());
    if (!knows(missing)) continue;
    if (static_cast<Cell>(missing.size()) > round_.free_cells()) branches_.drop_nodes();
    if (static_cast<Cell>(missing.size()) > round_.free_cells()) continue;
    round_.add(request, state->seq, state->tree);
    for (std::size_t i = 0; i < missing.size(); ++i) round_.feed(missing[i], i + 1 == missing.size());
    state->log.insert(state->log.end(), missing.begin(), missing.end());
    state->known = static_cast<Pos>(request.history.size()) - 1;  // the last one may be taken back
  }
  round_.run([this](const LevelRows& rows, std::span<const std::int32_t>) { return forward(rows); });
}

bool ModelDrafter::knows(std::span<const Token> tokens) const {
  return std::all_of(tokens.begin(), tokens.end(), [&](Token token) { return token < vocab_size_; });
}

// Drops what the branch no longer says and takes over what the last draft got right, so that the log is a prefix of
// the history, without its last token at least: the row of that one is what the next draft begins with.
void ModelDrafter::reconcile(FedBranch& state, std::span<const Token> history) {
  state.log.resize(static_cast<std::size_t>(cache_->seq_len(state.seq)));  // a round that failed fed less
  const auto known = std::min({static_cast<std::size_t>(state.known), state.log.size(), history.size()});
  const auto [held, said] = std::mismatch(state.log.begin() + static_cast<std::ptrdiff_t>(known), state.log.end(),
                                          history.begin() + static_cast<std::ptrdiff_t>(known), history.end());
  if (held != state.log.end() || said == history.end()) {
    const auto same = static_cast<Pos>(held - state.log.begin());
    keep(state, std::min(same, static_cast<Pos>(history.size()) - 1));
  } else {
    accept(state, history);
  }
}

void ModelDrafter::accept(FedBranch& state, std::span<const Token> history) {
  chain_.clear();
  for (std::int32_t node = -1; state.log.size() + 1 < history.size();) {
    node = state.tree.child_that_ran(node, history[state.log.size()]);
    if (node < 0) break;
    chain_.push_back(state.tree.place(node));
    state.log.push_back(state.tree.token(node));
  }
  state.tree.clear();
  if (cache_->frontier_size(state.seq) > 0) {
    cache_->commit(chain_, static_cast<std::int32_t>(chain_.size()), state.seq);
  }
}

void ModelDrafter::keep(FedBranch& state, Pos length) {
  state.tree.clear();
  branches_.truncate(state, length);
  state.log.resize(static_cast<std::size_t>(cache_->seq_len(state.seq)));
  state.known = std::min(state.known, length);
}

std::span<const float> ModelDrafter::forward(const LevelRows& rows) {
  return program_->forward(rows.tokens, rows.positions, rows.logits_indices);
}

// Keeps up with prompts as the target runs them. What goes wrong here is left to propose, which tries again.
void ModelDrafter::observe(BranchId branch, Pos first, std::span<const Token> tokens, std::span<const float>) {
  const Pos end = first + static_cast<Pos>(tokens.size());
  if (static_cast<Pos>(tokens.size()) < kLeastPrefill) return;
  FedBranch* state = branches_.open(branch);
  if (!state) return;
  const Pos held = cache_->seq_len(state->seq);
  if (first > held || end - held < kLeastPrefill) return;
  const auto overlap = tokens.first(static_cast<std::size_t>(held - first));
  state->log.resize(static_cast<std::size_t>(held));
  if (!std::equal(overlap.begin(), overlap.end(), state->log.begin() + first)) return;
  keep(*state, held);  // without the draft's nodes: few of them are in a text of this length
  const auto fresh = tokens.subspan(overlap.size());
  if (!knows(fresh)) return;
  prefill_.clear();
  if (static_cast<Cell>(fresh.size()) > prefill_.free_cells()) return;
  for (const Token token : fresh) prefill_.add_plain(state->seq, token, false);
  try {
    prefill_.run([this](const LevelRows& rows) { return forward(rows); },
                 [](const LevelRows&, std::span<const float>) {});
  } catch (const Error&) {
  }
  state->log.insert(state->log.end(), fresh.begin(), fresh.end());
  state->log.resize(static_cast<std::size_t>(cache_->seq_len(state->seq)));
  state->known = static_cast<Pos>(state->log.size());
}

void ModelDrafter::shared(BranchId src, BranchId dst, Pos length) {
  branches_.close(dst);
  FedBranch* from = branches_.find(src);
  if (!from) return;
  const Pos held = std::min(length, cache_->seq_len(from->seq));
  FedBranch* to = held > 0 ? branches_.open(dst) : nullptr;
  if (!to) return;
  cache_->seq_cp(from->seq, to->seq, 0, held);
  to->log.assign(from->log.begin(), from->log.begin() + held);
  to->known = std::min(from->known, held);
}

void ModelDrafter::truncated(BranchId branch, Pos length) {
  FedBranch* state = branches_.find(branch);
  if (!state) return;
  if (length < cache_->seq_len(state->seq)) keep(*state, length);
  state->known = std::min(state->known, length);
}

DraftStats ModelDrafter::stats() const {
  return {.levels = round_.levels(),
          .forwards = round_.forwards(),
          .prefills = prefill_.forwards(),
          .seconds = round_.seconds() + prefill_.seconds()};
}

}  // namespace agentkv
