// The interface between the driver of linear layers over blocks (cpu/blocks) and its kernels: plain data, see table.h.
//
// A row x[K] becomes codes, symmetric, in blocks as the weight has them (quantize_row of block_rows.h): x is about
// s(b) * code, code in [-127, 127]. Panels are as cpu/blocks/panel_layout.h says.
//
// The arithmetic is part of the interface: every kernel, for any number of rows, on every instruction set, computes
//   I(b) = sum over groups g of block b of scales[g] * (sum over g of value of W * code of x)     integers, exact
//   J(b) = sum over groups g of block b of minima[g] * (sum over g of code of x)                  integers, exact
//   sum  = 0, then for b = 0, 1, ...
//          sum = fma(float(I(b)) * s(b), scale(b), sum), and where the format has a minimum
//          sum = fma(-(float(J(b)) * s(b)), minimum(b), sum)
//   y    = sum + bias
// each conversion and product rounded, each fma once, also where the machine has none. Of one group scales[g] and
// minima[g] are 1. Integers stay below 2^28: |value * code| <= 2^14, 256 of them times at most 2^7, as bounded by the
// formats (4,096 * 127 * 256). Weights that are floats meet rows as they are:
//   y    = (fma chain over k = 0 .. K - 1 of x[k] * W[k], from 0) + bias
// Where there is no FMA (v2) each step of that is rounded twice.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/blocks/formats.h"
#include "cpu/kernels/linear_table.h"

namespace agentkv::cpu {

// Rows as kernels read them; what lies between the last row and a multiple of kRowBlock is never used.
struct ActivationCodes {
  std::int8_t* codes;  // [rows][stride]
  std::size_t stride;  // bytes
  std::int16_t* sums;  // [rows][sum_stride]: of the codes of each group
  std::size_t sum_stride;
  float* scales;   // [rows][scale_stride]: of each block; NaN where it has a value that is not finite
  float* offsets;  // [rows][scale_stride]: the sum of a block's codes, times its scale
  std::size_t scale_stride;
};

// Some panels, and all rows.
struct BlockLinearArgs {
  const std::byte* panels;  // 64-byte aligned
  std::size_t panel_bytes;
  int inputs;
  int outputs;  // of these panels; the last one may be cut
  ActivationCodes x;
  int rows;
  const float* bias;  // [outputs], or null
  float* y;           // [rows][y_stride]
  std::size_t y_stride;
  float* scratch;  // [linear_scratch_floats(rows)], 64-byte aligned
};

// The same with weights that are floats, [K][kPanel] of a panel.
struct FloatBlockArgs {
  const std::byte* panels;
  int inputs;
  int outputs;
  const float* x;  // [rows][x_stride]
  std::size_t x_stride;
  int rows;
  const float* bias;  // [outputs], or null
  float* y;           // [rows][y_stride]
  std::size_t y_stride;
};

struct BlockKernelTable {
  // x [inputs] into row `row` of `out`, in blocks of `block` inputs and sums over `group` of them.
  void (*quantize_row)(const float* x, int inputs, int block, int group, const ActivationCodes& out, int row);
  void (*multiply[kBlockFormats])(const BlockLinearArgs&);
  void (*multiply_f32)(const FloatBlockArgs&);
  void (*multiply_f16)(const FloatBlockArgs&);
  void (*multiply_bf16)(const FloatBlockArgs&);
};

const BlockKernelTable& block_kernels();

}  // namespace agentkv::cpu
