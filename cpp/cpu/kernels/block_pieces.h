// Many rows and a piece of a panel at a time: where rows begin, and where their sums go.
#pragma once

#include "cpu/blocks/panel_layout.h"
#include "cpu/kernels/block_table.h"
#include "cpu/kernels/linear_dot.h"

namespace agentkv::cpu {
namespace {

constexpr int kBlockPieceInputs = 512;

// Where some rows begin, at a block of inputs that has an even number of groups before it.
struct RowsAt {
  const std::int8_t* codes;
  const std::int16_t* sums;
  const std::int32_t* bases;
  const float *scales, *offsets;
};
// Rows from `row` on, kRows of which lie together.
template <class F, int kRows>
AGENTKV_INLINE RowsAt rows_at(const ActivationCodes& x, int row, int block) {
  const auto r = static_cast<std::size_t>(row);
  const int blocks = block * kRows;
  const int groups = blocks * PanelLayout<F>::kGroups;
  return {x.codes + r * x.stride + blocks * F::kInputs, x.sums + r * x.sum_stride + groups,
          x.bases + r * x.base_stride + groups, x.scales + r * x.scale_stride + blocks,
          x.offsets + r * x.scale_stride + blocks};
}

// Rows of y lie far apart: unless they come while products are added up, each of them is waited for when it is written.
AGENTKV_INLINE void prefetch_sums(const BlockLinearArgs& a, int first, int row, int end) {
  for (; row < end; ++row) {
    const float* y = a.y + static_cast<std::size_t>(row) * a.y_stride + first;
    __builtin_prefetch(y, 1, 2);
    __builtin_prefetch(y + 16, 1, 2);
    __builtin_prefetch(y + kPanel - 1, 1, 2);
  }
}

// The sums [kPanel] of rows [row, end) with n outputs of a panel, from output `first` on, plus their bias.
AGENTKV_INLINE void write_sums(const BlockLinearArgs& a, int first, int n, const float* bias, int row, int end,
                               const float* sums) {
  for (; row < end; ++row, sums += kPanel) {
    float* y = a.y + static_cast<std::size_t>(row) * a.y_stride + first;
    for (int j = 0; j < n; j += kWidth) write_outputs(load(sums + j) + load(bias + j), y + j, n - j);
  }
}

}  // namespace
}  // namespace agentkv::cpu
