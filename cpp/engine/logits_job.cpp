#include "engine/jobs.h"

namespace agentkv {

void LogitsJob::prepare() {
  if (!branch_.next_logits) return context_.branches.take_last(branch_);
  outcome_.logits = *branch_.next_logits;
  finish();
}

void LogitsJob::offer(Batch& batch) {
  const auto tokens = branch_.pending();
  if (batch.free_cells() < 1) return no_room(1, batch.free_cells());
  batch.add({.job = this,
             .seq = branch_.seq,
             .branch = &branch_,
             .tokens = tokens,
             .first_logits = tokens.size() - 1,
             .decode = true});
}

void LogitsJob::absorb(const RowResults& rows) {
  branch_.next_logits = context_.rows.copy(checked_row(rows.row(rows.segment.begin + rows.segment.count - 1)));
  outcome_.logits = *branch_.next_logits;
  finish();
}

}  // namespace agentkv
