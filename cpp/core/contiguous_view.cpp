#include "core/contiguous_view.h"

#include <algorithm>

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {

void ContiguousView::begin_step(std::int32_t n) {
  rows_.assign(static_cast<std::size_t>(std::max(n, 0)), 0);
  cache_->begin_step(rows_);
}

void ContiguousView::rewind(Pos length) {
  const Pos held = this->length();
  if (length < 0 || length > held) {
    throw InvalidRange(error_text("rewind to length ", length, "; it must be in [0, ", held, "]"));
  }
  if (held > 0) cache_->seq_rm(0, length);  // refused inside a step, even where nothing goes
}

}  // namespace agentkv
