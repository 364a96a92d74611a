#include <algorithm>

#include "engine/jobs.h"

namespace agentkv {
namespace {

// So few rows ride with the decode rows: loops that extend token by token must not queue behind a long prefill.
constexpr std::size_t kShort = 4;

// Rows that are worth waiting for: fewer cost less than the steps that pass.
constexpr std::size_t kWorthWaiting = 16;

}  // namespace

ExtendJob::ExtendJob(JobId id, Branch& branch, JobContext& context, std::span<const Token> tokens,
                     std::optional<Ahead> ahead)
    : Job(id, branch, context),
      ahead_(ahead),
      n_pending_(branch.pending().size()),
      base_length_(branch.length()),
      base_row_(branch.next_logits) {
  branch.made = {};
  if (tokens.empty()) return;
  const auto pending = branch.pending();
  tokens_.reserve(pending.size() + tokens.size());
  tokens_.assign(pending.begin(), pending.end());
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

// Of the branch as it will be; those that were fed are in its log and in tokens_.
Token ExtendJob::token_at(std::size_t position) const {
  const std::size_t cached = static_cast<std::size_t>(base_length_) - n_pending_;
  return position < cached ? branch_.log[position] : tokens_[position - cached];
}

bool ExtendJob::spells(std::span<const Token> log) const {
  for (std::size_t i = log.size(); i-- > 0;) {  // histories that differ mostly differ at their ends
    if (log[i] != token_at(i)) return false;
  }
  return true;
}

std::optional<Ahead> ExtendJob::ahead_of(const Branch& branch, std::span<const Token> tokens) const {
  const auto cached = static_cast<std::size_t>(branch.n_cached);
  const std::size_t length = static_cast<std::size_t>(base_length_) - n_pending_ + tokens_.size();
  const std::size_t theirs = branch.log.size() + tokens.size() - 1;  // the last one is fed for its logits
  std::size_t common = cached;
  while (common < std::min(length, theirs)) {
    const Token next = common < branch.log.size() ? branch.log[common] : tokens[common - branch.log.size()];
    if (next != token_at(common)) break;
    ++common;
  }
  if (common < cached + kWorthWaiting || !spells(std::span(branch.log).first(cached))) return std::nullopt;
  return Ahead{id(), branch_.id, static_cast<Pos>(common)};
}

// Is what another job computes now to be shared later? Once it is there, or the other job has ended, no more.
bool ExtendJob::waits() {
  if (!ahead_) return false;
  const Branch* other = context_.branches.known(ahead_->branch) ? &context_.branches.at(ahead_->branch) : nullptr;
  const bool running = other && other->job && other->job->id() == ahead_->job && !other->job->done();
  if (running && other->n_cached < ahead_->length) return true;
  const Pos length = other ? std::min(other->n_cached, ahead_->length) : 0;
  ahead_.reset();
  const Pos fresh = length - branch_.n_cached;
  if (fresh <= 0 || !spells(std::span(other->log).first(static_cast<std::size_t>(length)))) return false;
  advance(static_cast<std::size_t>(fresh));
  context_.branches.share_more(*other, branch_, length);
  context_.stats.reused += static_cast<std::uint64_t>(fresh);
  return false;
}

void ExtendJob::advance(std::size_t count) {
  const std::size_t end = fed_ + count;
  const std::size_t fresh = std::max(fed_, n_pending_);  // the pending token is in the log already
  branch_.next_logits.reset();
  branch_.log.insert(branch_.log.end(), tokens_.begin() + static_cast<std::ptrdiff_t>(fresh),
                     tokens_.begin() + static_cast<std::ptrdiff_t>(end));
  fed_ = end;
}

bool ExtendJob::rides_with_decode() const { return tokens_.size() - fed_ <= kShort; }

void ExtendJob::prepare() {
  if (tokens_.empty()) finish();
}

void ExtendJob::offer(Batch& batch) {
  if (waits()) return;
  const std::size_t left = tokens_.size() - fed_;
  // Looked at as a whole, so that a prompt which cannot fit does not eat the cells of those that can.
  const auto needed = static_cast<Cell>(left);
  if (needed > batch.free_cells() + batch.returning_cells()) return no_room(needed, batch.free_cells());
  if (needed > batch.free_cells()) return;
  const std::size_t count = rides_with_decode() ? left : std::min(left, batch.prefill_budget());
  if (count == 0) return;
  batch.add({.job = this,
             .seq = branch_.seq,
             .branch = &branch_,
             .tokens = std::span(tokens_).subspan(fed_, count),
             .first_logits = count == left ? count - 1 : count});
}

void ExtendJob::absorb(const RowResults& rows) {
  advance(rows.segment.count);
  if (fed_ < tokens_.size()) return;
  branch_.next_logits = context_.rows.copy(rows.row(rows.segment.begin + rows.segment.count - 1));
  finish();
  branch_.made = {id(), base_length_, base_row_};
}

void ExtendJob::restore() {
  context_.branches.rollback(branch_, base_length_);
  if (base_row_) branch_.next_logits = base_row_;
}

}  // namespace agentkv
