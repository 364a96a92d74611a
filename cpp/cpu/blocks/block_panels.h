// Some panels of a weight in blocks times some rows: what one task of a linear layer over blocks computes.
#pragma once

#include <cstddef>
#include <span>

#include "cpu/blocks/block_weight.h"
#include "cpu/kernels/block_table.h"
#include "cpu/linear/panels.h"

namespace agentkv::cpu {

// Rows as weights of a type meet them: floats where these are floats, else codes.
struct BlockRows {
  const float* x = nullptr;
  std::size_t stride = 0;  // in floats
  ActivationCodes codes{};
  int count = 0;
};

// Does a type's weight meet codes?
bool meets_codes(BlockType type);
int panels_of(const BlockShape& shape);
int outputs_of(const BlockShape& shape, Panels panels);

// bias [outputs] of the whole weight, or empty. y: the first of the panels' outputs, of the first row; `y_stride` in
// floats.
void multiply_panels(const BlockWeight& weight, Panels panels, const BlockRows& rows, std::span<const float> bias,
                     float* y, std::size_t y_stride);

}  // namespace agentkv::cpu
