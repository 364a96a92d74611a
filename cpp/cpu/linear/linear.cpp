#include "cpu/linear/linear.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/errors.h"
#include "core/isa.h"
#include "core/message.h"
#include "cpu/kernels/linear_table.h"

namespace agentkv::cpu {

AGENTKV_DEFINE_MATRIX_KERNELS(LinearKernelTable, linear_kernels)

namespace {

// What a task reads of the weights where there is one row, and where there are more the fewer: enough that memory
// streams, and little enough that threads end together.
constexpr std::size_t kTaskBytes = 64 << 10;

float* scratch_of(int rows) {
  thread_local std::vector<float> buffer;
  const std::size_t floats = linear_scratch_floats(rows) + 16;
  if (buffer.size() < floats) buffer.resize(floats);
  return buffer.data() + (64 - reinterpret_cast<std::uintptr_t>(buffer.data()) % 64) % 64 / sizeof(float);
}

int panels_per_task(const PackedLinear& weight, int rows) {
  const std::size_t bytes = kTaskBytes / static_cast<std::size_t>(1 + rows / kRowBlock);
  return static_cast<int>(std::max<std::size_t>(1, bytes / weight.panel_bytes()));
}

auto multiply_of(const LinearShape& shape) {
  const LinearKernelTable& kernels = linear_kernels();
  if (shape.bits == 8) return kernels.multiply_int8;
  return shape.group == 32 ? kernels.multiply_group32 : kernels.multiply_group64;
}

}  // namespace

void linear(const QuantizedRows& x, const PackedLinear& weight, std::span<const float> bias, float* y,
            std::size_t y_stride, const ParallelFor& parallel_for) {
  const LinearShape& shape = weight.shape();
  const auto outputs = static_cast<std::size_t>(shape.outputs);
  require<InvalidTensor>(x.inputs() == shape.inputs, "rows of ", x.inputs(), " inputs for a weight of ", shape.inputs);
  require<InvalidTensor>(bias.empty() || bias.size() == outputs, "a bias of ", bias.size(), " for ", outputs,
                         " outputs");
  require<InvalidTensor>(y_stride >= outputs, "rows of ", outputs, " outputs, ", y_stride, " apart: they overlap");
  if (x.rows() == 0) return;

  const auto multiply = multiply_of(shape);
  const int per_task = panels_per_task(weight, x.rows());
  const auto task = [&](std::size_t i) {
    const int panel = static_cast<int>(i) * per_task, first = panel * kPanel;
    multiply({.panels = weight.panel(panel),
              .panel_bytes = weight.panel_bytes(),
              .inputs = shape.inputs,
              .outputs = std::min(per_task * kPanel, shape.outputs - first),
              .x = x.view(),
              .rows = x.rows(),
              .bias = bias.empty() ? nullptr : bias.data() + first,
              .y = y + first,
              .y_stride = y_stride,
              .scratch = scratch_of(x.rows())});
  };
  const int per_task_outputs = per_task * kPanel;
  const auto n_tasks = static_cast<std::size_t>((shape.outputs + per_task_outputs - 1) / per_task_outputs);
  if (n_tasks > 1 && parallel_for) return parallel_for(n_tasks, task);
  for (std::size_t i = 0; i < n_tasks; ++i) task(i);
}

}  // namespace agentkv::cpu
