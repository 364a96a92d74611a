#include "mlx/convolution.h"

#include <mlx/ops.h>

#include <algorithm>
#include <vector>

namespace agentkv::mlx {

mx::array convolve(const StepPlan& plan, const CellsView& inputs, const Convolution& convolution) {
  const int tokens = plan.n_tokens(), channels = convolution.weight.shape(0), width = convolution.weight.shape(2);
  std::vector<Cell> cells = plan.recent_cells(width);
  std::vector<float> seen;
  for (Cell& cell : cells) {
    seen.push_back(cell < 0 ? 0.0f : 1.0f);
    cell = std::max(cell, 0);
  }
  const mx::array held = mx::take(inputs.values, mx::array(cells.begin(), {tokens, width}, mx::int32), 2);
  const mx::array taps = mx::reshape(mx::transpose(held, {0, 2, 3, 1, 4}), {tokens, width, channels});
  const mx::array weight = mx::astype(mx::reshape(convolution.weight, {channels, width}), mx::float32);
  // Cells are the newest first, weights the newest last.
  const mx::array newest_first = mx::slice(weight, {0, width - 1}, {channels, -width - 1}, {1, -1});
  const mx::array weights = mx::transpose(newest_first) * mx::array(seen.begin(), {tokens, width, 1}, mx::float32);
  mx::array out = mx::sum(taps * weights, 1);
  if (convolution.bias) out = out + mx::astype(*convolution.bias, mx::float32);
  return mx::expand_dims(out, 0);
}

}  // namespace agentkv::mlx
