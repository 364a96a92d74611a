#include "cpu/blocks/block_linear.h"

#include <algorithm>

#include "core/errors.h"
#include "core/isa.h"
#include "core/message.h"
#include "cpu/blocks/activation_blocks.h"
#include "cpu/kernels/block_table.h"
#include "cpu/linear/panels.h"
#include "cpu/tasks.h"

namespace agentkv::cpu {

AGENTKV_DEFINE_MATRIX_KERNELS(BlockKernelTable, block_kernels)

namespace {

constexpr std::size_t kLookupsPerTask = 16;

auto float_kernel(BlockType type) {
  const BlockKernelTable& kernels = block_kernels();
  if (type == BlockType::F32) return kernels.multiply_f32;
  return type == BlockType::F16 ? kernels.multiply_f16 : kernels.multiply_bf16;
}

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
  const BlockTypeInfo& info = block_type_info(static_cast<std::int32_t>(shape.type));
  const int panels = (shape.outputs + kPanel - 1) / kPanel;
  const int per_task = panels_per_task(weight.panel_bytes(), rows);
  thread_local ActivationBlocks kept;
  ActivationBlocks& codes = kept;  // the name of a thread_local variable would be another thread's in there
  if (info.group > 0) codes.assign(x, rows, shape.inputs, x_stride, shape.type, parallel_for);
  run_tasks(static_cast<std::size_t>((panels + per_task - 1) / per_task), parallel_for, [&](std::size_t i) {
    const int first = static_cast<int>(i) * per_task, end = std::min(panels, first + per_task);
    const int n = std::min(end * kPanel, shape.outputs) - first * kPanel;
    const float* own_bias = bias.empty() ? nullptr : bias.data() + first * kPanel;
    if (info.group == 0) {
      return float_kernel(shape.type)({.panels = weight.panel(first),
                                       .inputs = shape.inputs,
                                       .outputs = n,
                                       .x = x,
                                       .x_stride = x_stride,
                                       .rows = rows,
                                       .bias = own_bias,
                                       .y = y + first * kPanel,
                                       .y_stride = y_stride});
    }
    block_kernels().multiply[info.format]({.panels = weight.panel(first),
                                           .panel_bytes = weight.panel_bytes(),
                                           .inputs = shape.inputs,
                                           .outputs = n,
                                           .x = codes.view(),
                                           .rows = rows,
                                           .bias = own_bias,
                                           .y = y + first * kPanel,
                                           .y_stride = y_stride,
                                           .scratch = scratch_of(rows)});
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
