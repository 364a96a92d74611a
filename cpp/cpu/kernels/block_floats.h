// Rows of floats times weights that are floats of 16 or 32 bits.
#pragma once

#include "cpu/kernels/block_codes.h"
#include "cpu/kernels/linear_tiling.h"

namespace agentkv::cpu {
namespace {

// Two vectors of outputs of rows [row, row + N); `panel` holds the weights of the first of them.
template <class Element, int N>
void float_block_rows(const FloatBlockArgs& a, const std::byte* panel, int row, int first, int n, const float* bias) {
  constexpr int kBytes = Element::kElement;
  const float* x = a.x + static_cast<std::size_t>(row) * a.x_stride;
  Vec low[N] = {}, high[N] = {};
  for (int k = 0; k < a.inputs; ++k, panel += kPanel * kBytes) {
    prefetch_ahead<kPanel * kBytes>(panel);
    const Vec w = Element::load(panel, 0), v = Element::load(panel, kWidth);
#pragma GCC unroll 12
    for (int r = 0; r < N; ++r) {
      const Vec value = splat(x[static_cast<std::size_t>(r) * a.x_stride + static_cast<std::size_t>(k)]);
      low[r] = fma(value, w, low[r]);
      high[r] = fma(value, v, high[r]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < N; ++r) {
    float* y = a.y + static_cast<std::size_t>(row + r) * a.y_stride + first;
    write_outputs(low[r] + load(bias), y, n);
    write_outputs(high[r] + load(bias + kWidth), y + kWidth, n - kWidth);
  }
}

template <class Element, int N>
AGENTKV_INLINE void float_block_panel(const FloatBlockArgs& a, const std::byte* panel, int row, int first, int n,
                                      const float* bias) {
  for (int j = 0; j < n; j += kFloatOutputs) {
    float_block_rows<Element, N>(a, panel + j * Element::kElement, row, first + j, n - j, bias + j);
  }
}

template <class Element>
void multiply_float_blocks(const FloatBlockArgs& a) {
  const std::byte* panel = a.panels;
  const std::size_t panel_bytes = static_cast<std::size_t>(a.inputs) * kPanel * Element::kElement;
  for (int first = 0; first < a.outputs; first += kPanel, panel += panel_bytes) {
    const int n = a.outputs - first < kPanel ? a.outputs - first : kPanel;
    alignas(64) float bias[kPanel];
    load_bias(a.bias == nullptr ? nullptr : a.bias + first, n, bias);
    int row = 0;
    for (; row + kFloatRows <= a.rows; row += kFloatRows) {
      float_block_panel<Element, kFloatRows>(a, panel, row, first, n, bias);
    }
    for (; row < a.rows; ++row) float_block_panel<Element, 1>(a, panel, row, first, n, bias);
  }
}

}  // namespace
}  // namespace agentkv::cpu
