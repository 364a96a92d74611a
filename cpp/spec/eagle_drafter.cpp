#include "spec/eagle_drafter.h"

#include <chrono>
#include <unordered_map>
#include <utility>

#include "core/errors.h"
#include "spec/check_options.h"

namespace agentkv {
namespace {

// Entries that may wait for the next round; more are run at once, so that rounds stay short. So are those of rows that
// came together, as a prompt does: the target was busy with it anyway, and the rounds after it begin up to date.
constexpr Pos kFlushRows = 128;
constexpr std::size_t kPromptRows = 32;

std::vector<Token> target_tokens(const HeadInfo& head, std::span<const std::int32_t> d2t, std::int32_t target_vocab) {
  if (d2t.empty()) {
    if (head.vocab_size == target_vocab) return {};
    throw InvalidDrafter(error_text("the draft head has ", head.vocab_size, " tokens and the target ", target_vocab,
                                    ", and no d2t says which are which"));
  }
  if (d2t.size() != static_cast<std::size_t>(head.vocab_size)) {
    throw InvalidDrafter(
        error_text("d2t has ", d2t.size(), " entries for the draft head's ", head.vocab_size, " tokens"));
  }
  std::vector<Token> target;
  std::unordered_map<Token, std::size_t> seen;
  for (std::size_t i = 0; i < d2t.size(); ++i) {
    const std::int64_t token = static_cast<std::int64_t>(i) + d2t[i];
    if (token < 0 || token >= target_vocab) {
      throw InvalidDrafter(error_text("d2t makes token ", i, " of the draft head token ", token,
                                      " of the target, which has ", target_vocab));
    }
    const auto [other, fresh] = seen.emplace(static_cast<Token>(token), i);
    if (!fresh) {
      throw InvalidDrafter(error_text("d2t makes tokens ", other->second, " and ", i,
                                      " of the draft head the same token ", token, " of the target"));
    }
    target.push_back(static_cast<Token>(token));
  }
  return target;
}

}  // namespace

EagleDrafter::EagleDrafter(std::shared_ptr<HeadRunner> head, std::shared_ptr<TreeSeqCache> cache,
                           std::span<const std::int32_t> d2t, std::int32_t target_vocab_size, TreeOptions options)
    : head_(checked(std::move(head), "head")),
      cache_(checked(std::move(cache), "tree cache")),
      feature_dim_(static_cast<std::size_t>(head_->info().feature_dim)),
      hidden_dim_(static_cast<std::size_t>(head_->info().hidden_dim)),
      flush_rows_(std::min(kFlushRows, static_cast<Pos>(head_->info().max_tokens))),
      branches_(cache_),
      round_(*cache_, head_->info().max_tokens, head_->info().max_logits, checked(options),
             target_tokens(head_->info(), d2t, target_vocab_size)),
      prefill_(*cache_, head_->info().max_tokens, head_->info().max_logits) {}

void EagleDrafter::propose(std::span<DraftRequest> requests) {
  round_.begin();
  joined_.clear();
  features_.clear();
  for (DraftRequest& request : requests) {
    if (!request.history.empty()) join(request);
  }
  if (joined_.empty()) return;
  fuse();
  round_.run([this](const LevelRows& rows, std::span<const std::int32_t> sources) { return forward(rows, sources); });
  for (EagleBranch* state : joined_) {
    cache_->commit({}, 0, state->seq);
    state->tree.clear();
    state->forget_rows(cache_->seq_len(state->seq), feature_dim_);
  }
}

// A branch takes part when the target has run all of it but the last token, and the features are at hand.
void EagleDrafter::join(DraftRequest& request) {
  EagleBranch* state = branches_.find(request.branch);
  if (!state || state->n() == 0) return;
  if (state->offset + state->n() + 1 != static_cast<Pos>(request.history.size())) return;
  const Pos n = state->n();
  if (cache_->seq_len(state->seq) == n) branches_.truncate(*state, n - 1);  // the level's logits come from its row
  const Pos held = cache_->seq_len(state->seq);
  if (held < state->first_row(feature_dim_) || n - held > round_.free_cells()) return;
  const auto rows = state->rows(held, n, feature_dim_);
  features_.insert(features_.end(), rows.begin(), rows.end());
  state->next = request.history.back();
  round_.add(request, state->seq, state->tree);
  for (Pos entry = held; entry < n; ++entry) round_.feed(state->token_after(entry), entry + 1 == n);
  joined_.push_back(state);
}

void EagleDrafter::fuse() {
  const auto start = std::chrono::steady_clock::now();
  fused_.resize(features_.size() / feature_dim_ * hidden_dim_);
  head_->fuse(features_, fused_);
  fuse_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::span<const float> EagleDrafter::forward(const LevelRows& rows, std::span<const std::int32_t> sources) {
  std::span<const float> hidden = fused_;
  if (rows.first == 0) {
    above_hidden_.swap(level_hidden_);
    level_hidden_.clear();
  }
  if (sources.empty()) {
    hidden = hidden.subspan(rows.first * hidden_dim_, rows.tokens.size() * hidden_dim_);
  } else {
    hidden_in_.clear();
    for (const std::int32_t source : sources) {
      const auto row =
          above_hidden_.begin() + static_cast<std::ptrdiff_t>(source) * static_cast<std::ptrdiff_t>(hidden_dim_);
      hidden_in_.insert(hidden_in_.end(), row, row + static_cast<std::ptrdiff_t>(hidden_dim_));
    }
    hidden = hidden_in_;
  }
  const HeadRows out = head_->forward(rows.tokens, rows.positions, hidden, rows.logits_indices);
  level_hidden_.insert(level_hidden_.end(), out.hidden.begin(), out.hidden.end());
  return out.logits;
}

void EagleDrafter::observe(BranchId branch, Pos first, std::span<const Token> tokens, std::span<const float> features) {
  if (tokens.empty() || features.size() != tokens.size() * feature_dim_) return;
  EagleBranch* state = branches_.open(branch);
  if (!state) return;
  if (state->n() == 0 || first < state->offset || first > state->offset + state->n()) {
    restart(*state, first);
  } else {
    if (first < state->offset + state->n()) keep(*state, first - state->offset);
    const Pos held = cache_->seq_len(state->seq);
    if (held == state->n() && held > 0 && state->next != tokens.front()) branches_.truncate(*state, held - 1);
  }
  const auto step = static_cast<std::size_t>(flush_rows_);
  for (std::size_t at = 0; at < tokens.size(); at += step) {
    const std::size_t count = std::min(step, tokens.size() - at);
    append(*state, tokens.subspan(at, count), features.subspan(at * feature_dim_, count * feature_dim_));
  }
}

void EagleDrafter::append(EagleBranch& state, std::span<const Token> tokens, std::span<const float> features) {
  // The features of the last token went with what came after it: the next ones stand in.
  if (state.features.empty() && cache_->seq_len(state.seq) < state.n()) {
    state.features.assign(features.begin(), features.begin() + static_cast<std::ptrdiff_t>(feature_dim_));
  }
  state.tokens.insert(state.tokens.end(), tokens.begin(), tokens.end());
  state.features.insert(state.features.end(), features.begin(), features.end());
  const Pos waiting = state.n() - 1 - cache_->seq_len(state.seq);
  if (waiting >= flush_rows_ || (waiting > 0 && tokens.size() >= kPromptRows)) flush(state);
}

// Runs the entries whose tokens are known. Where that fails the branch begins anew; propose meets the same failure.
void EagleDrafter::flush(EagleBranch& state) {
  const Pos held = cache_->seq_len(state.seq);
  const Pos end = state.n() - 1;
  prefill_.clear();
  if (end - held > prefill_.free_cells()) return restart(state, state.offset + state.n());
  for (Pos entry = held; entry < end; ++entry) prefill_.add_plain(state.seq, state.token_after(entry), false);
  const auto rows = state.rows(held, end, feature_dim_);
  features_.assign(rows.begin(), rows.end());
  try {
    fuse();
    prefill_.run([this](const LevelRows& rows) { return forward(rows, {}); },
                 [](const LevelRows&, std::span<const float>) {});
  } catch (const Error&) {
    return restart(state, state.offset + state.n());
  }
  state.forget_rows(end, feature_dim_);
  state.features.shrink_to_fit();  // after a prompt, most branches need a row or two
}

void EagleDrafter::restart(EagleBranch& state, Pos position) {
  branches_.truncate(state, 0);
  state.restart(position);
}

// Of what the target ran, the first `length` tokens are left; the entry of the last of them was made with a token that
// is gone.
void EagleDrafter::keep(EagleBranch& state, Pos length) {
  if (length < 1) return restart(state, state.offset);
  branches_.truncate(state, length - 1);
  state.truncate(length, feature_dim_);
}

void EagleDrafter::shared(BranchId src, BranchId dst, Pos length) {
  branches_.close(dst);
  EagleBranch* from = branches_.find(src);
  const Pos kept = from ? std::min(length - from->offset, from->n()) : 0;
  EagleBranch* to = kept > 0 ? branches_.open(dst) : nullptr;
  if (!to) return;
  const Pos entries = std::min(kept - 1, cache_->seq_len(from->seq));
  if (entries > 0) cache_->seq_cp(from->seq, to->seq, 0, entries);
  to->offset = from->offset;
  to->tokens = from->tokens;
  to->features = from->features;
  to->truncate(kept, feature_dim_);
}

void EagleDrafter::truncated(BranchId branch, Pos length) {
  EagleBranch* state = branches_.find(branch);
  if (state && length - state->offset < state->n()) keep(*state, length - state->offset);
}

DraftStats EagleDrafter::stats() const {
  return {.levels = round_.levels(),
          .forwards = round_.forwards(),
          .prefills = prefill_.forwards(),
          .seconds = round_.seconds() + prefill_.seconds() + fuse_seconds_};
}

}  // namespace agentkv
