#include "engine/job.h"

#include <algorithm>
#include <utility>

#include "core/message.h"

namespace agentkv {

void Job::finish(const char* reason) {
  done_ = true;
  outcome_.finish_reason = reason;
  outcome_.seconds = seconds();
  give_back();
  conclude();
  context_.branches.tell(branch_);
}

void Job::cancel() {
  give_back();
  restore();
  finish("cancelled");
}

void Job::fail(ErrorKind kind, const std::string& message) {
  give_back();
  restore();
  outcome_.error = Failure{kind, message};
  finish();
}

void Job::offer_rows(Batch& batch) {
  context_.branches.forget_due(branch_);
  if (!behind()) return offer(batch);
  const std::size_t lacking = std::min(branch_.pending().size() - 1, context_.branches.feedable(branch_));
  const Cell needed = context_.branches.cells_for(branch_, lacking);
  if (needed > batch.free_cells()) return no_room(needed, batch.free_cells());
  const auto free = static_cast<std::size_t>(batch.free_cells());
  const std::size_t count = std::min({lacking, batch.prefill_budget(), free});
  if (count == 0) return;
  batch.add({.job = this,
             .seq = branch_.seq,
             .branch = &branch_,
             .tokens = branch_.pending().first(count),
             .first_logits = count,
             .history = true});
}

void Job::no_room(Cell needed, Cell free) {
  fail(ErrorKind::ContextFull, error_text(kind(), " on branch ", branch_.id, " needs ", needed, " more cells, but ",
                                          free, " are free: close or roll back branches, or open a larger cache"));
}

Finished Job::take_outcome() {
  outcome_.kind = kind();
  return std::move(outcome_);
}

}  // namespace agentkv
