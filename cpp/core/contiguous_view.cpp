#include "core/contiguous_view.h"

#include "core/errors.h"
#include "core/message.h"
#include "core/step_state.h"

namespace agentkv {

void ContiguousView::begin_step(std::int32_t n) {
  check_step_size(n, capacity() - used(), capacity());
  rows_.assign(static_cast<std::size_t>(n), 0);
  cache_->begin_step(rows_);
}

void ContiguousView::rewind(Pos length) {
  if (!step_positions().empty()) throw InvalidStep("rewind inside an open step; commit_step or abort_step first");
  const Pos held = this->length();
  if (length < 0 || length > held) {
    throw InvalidRange(error_text("rewind to length ", length, "; it must be in [0, ", held, "]"));
  }
  if (held > 0) cache_->seq_rm(0, length);
}

}  // namespace agentkv
