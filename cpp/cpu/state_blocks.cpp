#include "cpu/state_blocks.h"

#include <algorithm>

#include "core/errors.h"
#include "core/message.h"

namespace agentkv::cpu {

void BlockRows::check(const States& states) const {
  for (std::int32_t row = 0; row < count(); ++row) {
    const Pos at = position(row), begun = inside(row);
    for (Pos j = 0; j <= std::min(at, begun + 1); ++j) {
      require<InvalidStep>(seen(row)[j] >= 0, "a layer that keeps states lacks position ", at - j, " for ", at);
    }
    if (at <= begun) continue;
    const auto& written = plan.write_cells;
    require<InvalidStep>(
        states.find(before(row)) != nullptr || std::find(written.begin(), written.end(), before(row)) != written.end(),
        "a layer lacks its state at position ", at - begun - 1);
  }
}

void BlockRows::add_states(States& states) const {
  for (std::int32_t row = 0; row < count(); ++row) {
    if (ends_block(position(row))) states.add(cell(row));
  }
}

}  // namespace agentkv::cpu
