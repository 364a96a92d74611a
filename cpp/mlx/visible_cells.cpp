#include "mlx/visible_cells.h"

#include <mlx/ops.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace agentkv::mlx {
namespace {

// The first column that any row shows; rows follow one another.
std::size_t first_shown(const std::vector<std::uint8_t>& mask, std::size_t width) {
  std::size_t first = width;
  for (auto row = mask.begin(); row != mask.end(); row += static_cast<std::ptrdiff_t>(width)) {
    const auto end = row + static_cast<std::ptrdiff_t>(first);
    first = static_cast<std::size_t>(std::find(row, end, std::uint8_t{1}) - row);
  }
  return first;
}

}  // namespace

VisibleCells visible_cells(const StepPlan& plan, const Sight& sight) {
  const std::vector<std::uint8_t> all = plan.mask(sight.window, sight.sinks, sight.chunk);
  const auto width = static_cast<std::size_t>(plan.read_len);
  const std::size_t first = first_shown(all, width);
  std::vector<std::uint8_t> kept;
  kept.reserve(all.size());
  for (std::size_t row = 0; row < all.size(); row += width) {
    kept.insert(kept.end(), all.begin() + static_cast<std::ptrdiff_t>(row + first),
                all.begin() + static_cast<std::ptrdiff_t>(row + width));
  }
  VisibleCells visible{static_cast<Cell>(first), std::nullopt};
  if (std::find(kept.begin(), kept.end(), std::uint8_t{0}) != kept.end()) {
    visible.mask = mx::array(kept.begin(), {plan.n_tokens(), plan.read_len - visible.first}, mx::bool_);
  }
  return visible;
}

mx::array distances(const StepPlan& plan, Cell first) {
  const std::vector<Pos> positions = plan.cell_positions();
  const mx::array seen(positions.begin() + first, {1, plan.read_len - first}, mx::float32);
  return mx::subtract(seen, mx::array(plan.positions.begin(), {plan.n_tokens(), 1}, mx::float32));
}

}  // namespace agentkv::mlx
