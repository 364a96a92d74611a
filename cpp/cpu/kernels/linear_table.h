// The interface between the driver of linear layers and its kernels: plain data, see table.h.
//
// A row x[K] becomes codes: x is about scale * (code - zero), codes and zero in [-128, 127], zero an integer
// (quantize_row of linear_rows.h). A weight [N, K] is kept in panels of kPanel outputs. With 4 bits, every kGroup
// inputs of an output share a scale, a bfloat16; with 8 bits, all inputs do, and it is a float32. Codes are kept plus 8
// or 128:
//
//   4 bits: column [kPanel] float, then per group
//             scales [kPanel] bfloat16
//             codes  [kPanel / 16][kGroup / 8][16][4] bytes: of byte (half, i, n, j) the low four bits are code 8 i + j
//                    of the group and output 16 half + n, the high four bits code 8 i + 4 + j
//   8 bits: column [kPanel] float, scales [kPanel] float, codes [K / 4][kPanel][4] bytes, K rounded up to kInputs
//   floats: [K][kPanel] float
//
// column[n] is what a zero of 1 adds to output n: the sum over groups of scale * (sum of codes).
//
// The arithmetic is part of the interface: every kernel, for any number of rows, on every instruction set, computes
//   dot(g) = sum over group g of code of x * code of W       an integer, exact in any order
//   sum    = 0, then sum + float(dot(g)) * scale(g), for g = 0, 1, ...
//   y      = (sum - zero * column) * scale of x + bias       four operations, each rounded
// With 4 bits a group has at most 64 inputs, so |dot| <= 2^16, and a bfloat16 has 8 significant bits: the product is
// exact in float32, and it makes no difference whether a machine fuses it with the addition. With 8 bits there is one
// group, and the product is rounded once either way. Floats are not quantised, and rows stay as they are:
//   y      = (fma chain over k = 0 .. K - 1 of x[k] * W[k], from 0) + bias
// Where there is no FMA (v2) each step of it is rounded twice.
#pragma once

#include <cstddef>
#include <cstdint>

namespace agentkv::cpu {

inline constexpr int kPanel = 32;     // outputs that are kept together
inline constexpr int kInputs = 64;    // rows of codes, and 8-bit panels, are padded to a multiple of these inputs
inline constexpr int kSums = 32;      // codes of a row that are summed together
inline constexpr int kRowBlock = 16;  // kernels read codes of this many rows at a time, past the last one too

// Rows as kernels read them; what lies between the last row and a multiple of kRowBlock is never used.
struct RowCodes {
  std::int8_t* codes;  // [rows][stride], zeros from K on
  std::size_t stride;  // bytes
  std::int32_t* sums;  // [rows][sum_stride]: of kSums codes each
  std::size_t sum_stride;
  std::int32_t* totals;  // [rows]: of all codes
  float* scales;         // [rows]; NaN where a row has a value that is not finite
  float* zeros;          // [rows]
};

// Some panels, and all rows.
struct LinearArgs {
  const std::byte* panels;  // 64-byte aligned
  std::size_t panel_bytes;
  int inputs;
  int outputs;  // of these panels; the last one may be cut
  RowCodes x;
  int rows;
  const float* bias;  // [outputs], or null
  float* y;           // [..][y_stride], 64-byte aligned or not
  std::size_t y_stride;
  const std::int32_t* order;  // [rows] which row of y each of these is; null: the same
  float* scratch;             // [linear_scratch_floats(rows)], 64-byte aligned
};

// The same with weights that are floats.
struct FloatLinearArgs {
  const float* panels;  // 64-byte aligned
  int inputs;
  int outputs;
  const float* x;  // [..][x_stride]
  std::size_t x_stride;
  const std::int32_t* x_order;  // [rows] which row of x each of these is
  int rows;
  const float* bias;  // [outputs], or null
  float* y;           // [..][y_stride]
  std::size_t y_stride;
  const std::int32_t* order;  // [rows] which row of y each of these is
};

// The sums of rows and a panel, between two pieces of K.
inline constexpr int kScratchRows = 512;
inline constexpr std::size_t linear_scratch_floats(int rows) {
  const int kept = rows < kScratchRows ? (rows + kRowBlock - 1) / kRowBlock * kRowBlock : kScratchRows;
  return static_cast<std::size_t>(kept) * kPanel;
}

struct LinearKernelTable {
  // x [inputs] into row `row` of `out`.
  void (*quantize_row)(const float* x, int inputs, const RowCodes& out, int row);
  void (*multiply_group32)(const LinearArgs&);
  void (*multiply_group64)(const LinearArgs&);
  void (*multiply_int8)(const LinearArgs&);
  void (*multiply_float)(const FloatLinearArgs&);
};

const LinearKernelTable& linear_kernels();

}  // namespace agentkv::cpu
