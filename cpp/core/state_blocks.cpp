#include "core/state_blocks.h"

#include <algorithm>

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {

void BlockRows::check(const std::function<bool(Cell)>& has_state) const {
  for (std::int32_t row = 0; row < count(); ++row) {
    const Pos at = position(row), begun = inside(row);
    for (Pos j = 0; j <= std::min(at, begun + 1); ++j) {
      require<InvalidStep>(seen(row)[j] >= 0, "a layer that keeps states lacks position ", at - j, " for ", at);
    }
    if (at <= begun) continue;
    const auto& written = plan.write_cells;
    require<InvalidStep>(
        has_state(before(row)) || std::find(written.begin(), written.end(), before(row)) != written.end(),
        "a layer lacks its state at position ", at - begun - 1);
  }
}

}  // namespace agentkv
