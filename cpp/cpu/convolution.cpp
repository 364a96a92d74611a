#include "cpu/convolution.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "cpu/dtype.h"
#include "cpu/kernels/table.h"

namespace agentkv::cpu {
namespace {

constexpr std::size_t kRowsPerTask = 16;

}  // namespace

void convolve(const StepPlan& plan, const PoolView& inputs, const Convolution& convolution, MutableHeadsView out,
              const ParallelFor& parallel_for) {
  const auto width = static_cast<std::size_t>(convolution.width), dim = static_cast<std::size_t>(out.dim);
  const std::vector<Cell> cells = plan.recent_cells(convolution.width);
  const auto load = row_kernels(inputs.dtype).load_row;
  const auto apply = kernels().convolve;
  const auto rows = static_cast<std::size_t>(plan.n_tokens());
  const std::size_t padded = static_cast<std::size_t>(padded_dim(out.dim));
  const auto task = [&](std::size_t first) {
    std::vector<float> held(width * padded);
    std::vector<const float*> taps(width);
    for (std::size_t row = first * kRowsPerTask; row < std::min(rows, (first + 1) * kRowsPerTask); ++row) {
      for (std::size_t head = 0; head < static_cast<std::size_t>(out.heads); ++head) {
        for (std::size_t j = 0; j < width; ++j) {
          const Cell cell = cells[row * width + width - 1 - j];
          taps[j] = cell < 0 ? nullptr : held.data() + j * padded;
          if (cell < 0) continue;
          const auto at = static_cast<std::size_t>(cell) * inputs.row_bytes;
          load(inputs.data + head * inputs.head_stride + at, 1.0f, held.data() + j * padded, out.dim);
        }
        const float* bias = convolution.bias.empty() ? nullptr : convolution.bias.data() + head * dim;
        float* y = out.data + static_cast<std::int64_t>(head) * out.head_stride +
                   static_cast<std::int64_t>(row) * out.token_stride;
        apply(taps.data(), convolution.width, convolution.weights.data() + head * dim * width, bias, y, out.dim);
      }
    }
  };
  const std::size_t n_tasks = (rows + kRowsPerTask - 1) / kRowsPerTask;
  if (n_tasks > 1) return parallel_for(n_tasks, task);
  task(0);
}

}  // namespace agentkv::cpu
