#include "cpu/linear/panels.h"

#include <algorithm>
#include <vector>

#include "core/isa.h"

namespace agentkv::cpu {

AGENTKV_DEFINE_MATRIX_KERNELS(LinearKernelTable, linear_kernels)

namespace {

// What a task reads of the weights where there is one row, and where there are more the fewer: enough that memory
// streams, and little enough that threads end together.
constexpr std::size_t kTaskBytes = 64 << 10;

auto multiply_of(const LinearShape& shape) {
  const LinearKernelTable& kernels = linear_kernels();
  if (shape.bits == 8) return kernels.multiply_int8;
  return shape.group == 32 ? kernels.multiply_group32 : kernels.multiply_group64;
}

int outputs_of(const LinearShape& shape, Panels panels) {
  return std::min(panels.count * kPanel, shape.outputs - panels.first * kPanel);
}

const float* bias_of(std::span<const float> bias, Panels panels) {
  return bias.empty() ? nullptr : bias.data() + panels.first * kPanel;
}

}  // namespace

int panels_per_task(std::size_t panel_bytes, int rows) {
  const std::size_t bytes = kTaskBytes / static_cast<std::size_t>(1 + rows / kRowBlock);
  return static_cast<int>(std::max<std::size_t>(1, bytes / panel_bytes));
}

float* scratch_of(int rows) {
  thread_local std::vector<float> buffer;
  const std::size_t floats = linear_scratch_floats(rows) + 16;
  if (buffer.size() < floats) buffer.resize(floats);
  return buffer.data() + (64 - reinterpret_cast<std::uintptr_t>(buffer.data()) % 64) % 64 / sizeof(float);
}

int panels_of(const LinearShape& shape) { return (shape.outputs + kPanel - 1) / kPanel; }

void multiply_panels(const PackedLinear& weight, Panels panels, const RowCodes& x, int rows,
                     std::span<const float> bias, const Destination& to) {
  multiply_of(weight.shape())({.panels = weight.panel(panels.first),
                               .panel_bytes = weight.panel_bytes(),
                               .inputs = weight.shape().inputs,
                               .outputs = outputs_of(weight.shape(), panels),
                               .x = x,
                               .rows = rows,
                               .bias = bias_of(bias, panels),
                               .y = to.y + panels.first * kPanel,
                               .y_stride = to.stride,
                               .order = to.order.empty() ? nullptr : to.order.data(),
                               .scratch = scratch_of(rows)});
}

void multiply_panels(const PackedLinear& weight, Panels panels, const FloatRowsView& x, std::span<const float> bias,
                     const Destination& to) {
  linear_kernels().multiply_float({.panels = reinterpret_cast<const float*>(weight.panel(panels.first)),
                                   .inputs = weight.shape().inputs,
                                   .outputs = outputs_of(weight.shape(), panels),
                                   .x = x.x,
                                   .x_stride = x.stride,
                                   .x_order = x.order.data(),
                                   .rows = static_cast<int>(x.order.size()),
                                   .bias = bias_of(bias, panels),
                                   .y = to.y + panels.first * kPanel,
                                   .y_stride = to.stride,
                                   .order = to.order.data()});
}

}  // namespace agentkv::cpu
