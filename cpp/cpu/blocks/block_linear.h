// Linear layers and lookups over weights in blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/blocks/block_weight.h"
#include "cpu/heads_view.h"

namespace agentkv::cpu {

// x [rows, inputs] float32, row r at x + r * x_stride, times W^T, plus bias [outputs] unless that is empty -> y [rows,
// outputs], row r at y + r * y_stride (strides in floats). Rows are quantised to 8 bits in blocks where the weights are
// codes. The bits of a row of y depend on that row of x alone: not on the others, the threads, or the instruction set
// (but for weights that are floats, on v2). Throws InvalidTensor where shapes do not fit.
void block_linear(const float* x, std::size_t x_stride, int rows, const BlockWeight& weight,
                  std::span<const float> bias, float* y, std::size_t y_stride, const ParallelFor& parallel_for);

// Row ids[r] of the weight, times `factor` -> y + r * y_stride. Throws InvalidTensor, before anything is written, for
// an id that there is not.
void block_lookup(const BlockWeight& weight, std::span<const std::int64_t> ids, float factor, float* y,
                  std::size_t y_stride, const ParallelFor& parallel_for);

}  // namespace agentkv::cpu
