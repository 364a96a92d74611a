#include "cpu/blocks/block_linear.h"

#include <algorithm>

#include "core/errors.h"
#include "core/message.h"
#include "cpu/blocks/activation_blocks.h"
#include "cpu/blocks/block_panels.h"
#include "cpu/linear/panels.h"
#include "cpu/tasks.h"

namespace agentkv::cpu {
namespace {

constexpr std::size_t kLookupsPerTask = 16;

}  // namespace

void block_linear(const float* x, std::size_t x_stride, int rows, const BlockWeight& weight,
                  std::span<const float> bias, float* y, std::size_t y_stride, const ParallelFor& parallel_for) {
  const BlockShape& shape = weight.shape();
  const auto outputs = static_cast<std::size_t>(shape.outputs);
  require<InvalidTensor>(bias.empty() || bias.size() == outputs, "a bias of ", bias.size(), " for ", outputs,
                         " outputs");
  require<InvalidTensor>(x_stride >= static_cast<std::size_t>(shape.inputs) && y_stride >= outputs, "rows of ",
                         shape.inputs, " and ", outputs, " floats, ", x_stride, " and ", y_stride,
                         " apart: they overlap");
  if (rows <= 0) return;
  const int panels = panels_of(shape), per_task = panels_per_task(weight.panel_bytes(), rows);
  thread_local ActivationBlocks kept;
  ActivationBlocks& codes = kept;  // the name of a thread_local variable would be another thread's in there
  if (meets_codes(shape.type)) codes.assign(x, rows, shape.inputs, x_stride, shape.type, parallel_for);
  run_tasks(static_cast<std::size_t>((panels + per_task - 1) / per_task), parallel_for, [&](std::size_t i) {
    const int first = static_cast<int>(i) * per_task;
    multiply_panels(weight, {first, std::min(per_task, panels - first)}, {x, x_stride, codes.view(), rows}, bias,
                    y + first * kPanel, y_stride);
  });
}

void block_lookup(const BlockWeight& weight, std::span<const std::int64_t> ids, float factor, float* y,
                  std::size_t y_stride, const ParallelFor& parallel_for) {
  const BlockShape& shape = weight.shape();
  const auto inputs = static_cast<std::size_t>(shape.inputs);
  require<InvalidTensor>(y_stride >= inputs, "rows of ", inputs, " floats, ", y_stride, " apart: they overlap");
  for (const std::int64_t id : ids) {
    require<InvalidTensor>(id >= 0 && id < shape.outputs, "row ", id, " of ", shape.outputs);
  }
  run_tasks((ids.size() + kLookupsPerTask - 1) / kLookupsPerTask, parallel_for, [&](std::size_t i) {
    for (std::size_t r = i * kLookupsPerTask; r < std::min(ids.size(), (i + 1) * kLookupsPerTask); ++r) {
      const std::span row(y + r * y_stride, inputs);
      weight.read_row(static_cast<int>(ids[r]), row);
      for (float& value : row) value *= factor;
    }
  });
}

}  // namespace agentkv::cpu
