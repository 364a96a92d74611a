// The interface between the driver of linear layers over blocks (cpu/blocks) and its kernels: plain data, see table.h.
//
// A row x[K] becomes codes, symmetric, in blocks as the weight has them (block_rows.h): x is about
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

// Rows as kernels read them. Some of them lie together, so that what they have of the same input is side by side: all
// groups of rows but the last, which has the rest, are of `together` rows. Sums are in pairs of neighbouring groups of
// inputs, an odd one with room beside it.
struct ActivationCodes {
  std::int8_t* codes;  // of each group of rows [inputs / 4][its rows][4]
  std::size_t stride;  // bytes of a row
  std::int16_t* sums;  // of each group of rows [groups of inputs / 2][its rows][2]: of the codes
  std::size_t sum_stride;
  std::int32_t* bases;  // of each group of rows [groups of inputs][its rows]: their sums, times what bytes
                        // of the weight that they meet are too large by when they are multiplied, negated
  std::size_t base_stride;
  float* scales;   // of each group of rows [blocks][its rows]; NaN where a block has a value that is not finite
  float* offsets;  // the same of the sum of a block's codes, times its scale
  std::size_t scale_stride;
  int rows, together;
};

// Where a row lies.
struct RowPlace {
  std::size_t before;  // rows in the groups before
  std::size_t rows;    // of the group
  std::size_t row;     // in the group

  RowPlace(const ActivationCodes& x, int r) {
    const int first = r - r % x.together;
    before = static_cast<std::size_t>(first);
    rows = static_cast<std::size_t>(x.rows - first < x.together ? x.rows - first : x.together);
    row = static_cast<std::size_t>(r - first);
  }
};

// Rows of floats that become codes: blocks [begin, end) of those that lie together from `row` on, where an even number
// of groups is before `begin`.
struct BlockRowsArgs {
  const float* x;  // row r at x + r * x_stride
  std::size_t x_stride;
  ActivationCodes out;
  int row, begin, end;
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
  // How many rows lie together where there are `rows` of them.
  int (*rows_together)(int rows);
  void (*quantize[kBlockFormats])(const BlockRowsArgs&);
  void (*multiply[kBlockFormats])(const BlockLinearArgs&);
  void (*multiply_f32)(const FloatBlockArgs&);
  void (*multiply_f16)(const FloatBlockArgs&);
  void (*multiply_bf16)(const FloatBlockArgs&);
};

const BlockKernelTable& block_kernels();

}  // namespace agentkv::cpu
