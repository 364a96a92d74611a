#include <algorithm>

#include "engine/jobs.h"

namespace agentkv {
namespace {

// So few rows ride with the decode rows: loops that extend token by token must not queue behind a long prefill.
constexpr std::size_t kShort = 4;

}  // namespace

ExtendJob::ExtendJob(JobId id, Branch& branch, JobContext& context, std::span<const Token> tokens)
    : Job(id, branch, context),
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

bool ExtendJob::rides_with_decode() const { return tokens_.size() - fed_ <= kShort; }

void ExtendJob::prepare() {
  if (tokens_.empty()) finish();
}

void ExtendJob::offer(Batch& batch) {
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
  const std::size_t end = fed_ + rows.segment.count;
  const std::size_t fresh = std::max(fed_, n_pending_);  // the pending token is in the log already
  branch_.next_logits.reset();
  branch_.log.insert(branch_.log.end(), tokens_.begin() + static_cast<std::ptrdiff_t>(fresh),
                     tokens_.begin() + static_cast<std::ptrdiff_t>(end));
  fed_ = end;
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
