#include "engine/job.h"

#include <utility>

#include "core/message.h"

namespace agentkv {

void Job::finish(const char* reason) {
  done_ = true;
  outcome_.finish_reason = reason;
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

void Job::no_room(Cell needed, Cell free) {
  fail(ErrorKind::ContextFull, error_text(kind(), " on branch ", branch_.id, " needs ", needed, " more cells, but ",
                                          free, " are free: close or roll back branches, or open a larger cache"));
}

Finished Job::take_outcome() {
  outcome_.kind = kind();
  return std::move(outcome_);
}

}  // namespace agentkv
