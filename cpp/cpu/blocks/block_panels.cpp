#include "cpu/blocks/block_panels.h"

#include <algorithm>

#include "core/isa.h"

namespace agentkv::cpu {

AGENTKV_DEFINE_MATRIX_KERNELS(BlockKernelTable, block_kernels)

namespace {

const BlockTypeInfo& info_of(BlockType type) { return block_type_info(static_cast<std::int32_t>(type)); }

auto float_kernel(BlockType type) {
  const BlockKernelTable& kernels = block_kernels();
  if (type == BlockType::F32) return kernels.multiply_f32;
  return type == BlockType::F16 ? kernels.multiply_f16 : kernels.multiply_bf16;
}

}  // namespace

bool meets_codes(BlockType type) { return info_of(type).group > 0; }

int panels_of(const BlockShape& shape) { return (shape.outputs + kPanel - 1) / kPanel; }

int outputs_of(const BlockShape& shape, Panels panels) {
  return std::min(panels.count * kPanel, shape.outputs - panels.first * kPanel);
}

void multiply_panels(const BlockWeight& weight, Panels panels, const BlockRows& rows, std::span<const float> bias,
                     float* y, std::size_t y_stride) {
  const BlockShape& shape = weight.shape();
  const BlockTypeInfo& info = info_of(shape.type);
  const float* own_bias = bias.empty() ? nullptr : bias.data() + panels.first * kPanel;
  if (info.group == 0) {
    return float_kernel(shape.type)({.panels = weight.panel(panels.first),
                                     .inputs = shape.inputs,
                                     .outputs = outputs_of(shape, panels),
                                     .x = rows.x,
                                     .x_stride = rows.stride,
                                     .rows = rows.count,
                                     .bias = own_bias,
                                     .y = y,
                                     .y_stride = y_stride});
  }
  block_kernels().multiply[info.format]({.panels = weight.panel(panels.first),
                                         .panel_bytes = weight.panel_bytes(),
                                         .inputs = shape.inputs,
                                         .outputs = outputs_of(shape, panels),
                                         .x = rows.codes,
                                         .rows = rows.count,
                                         .bias = own_bias,
                                         .y = y,
                                         .y_stride = y_stride,
                                         .scratch = scratch_of(rows.count)});
}

}  // namespace agentkv::cpu
