// Rows of floats times weights that are floats.
#pragma once

#include "cpu/kernels/linear_dot.h"
#include "cpu/kernels/linear_tiling.h"

namespace agentkv::cpu {
namespace {

constexpr int kFloatAhead = 16;  // inputs that memory is asked for ahead: 2 kB of a panel

// Outputs [first, first + n) of rows [row, row + N); `panel` holds the weights of the first of them.
template <int N>
void float_rows(const FloatLinearArgs& a, const float* panel, int row, int first, int n, const float* bias) {
  const float* x[N];
#pragma GCC unroll 12
  for (int r = 0; r < N; ++r) x[r] = a.x + static_cast<std::size_t>(a.x_order[row + r]) * a.x_stride;
  Vec low[N] = {}, high[N] = {};
  for (int k = 0; k < a.inputs; ++k, panel += kPanel) {
    __builtin_prefetch(panel + kFloatAhead * kPanel, 0, 2);
    if constexpr (kFloatOutputs > 16) __builtin_prefetch(panel + kFloatAhead * kPanel + 16, 0, 2);
    const Vec w = load(panel), v = load(panel + kWidth);
#pragma GCC unroll 12
    for (int r = 0; r < N; ++r) {
      const Vec value = splat(x[r][k]);
      low[r] = fma(value, w, low[r]);
      high[r] = fma(value, v, high[r]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < N; ++r) {
    float* y = a.y + static_cast<std::size_t>(a.order[row + r]) * a.y_stride + first;
    alignas(64) float out[kFloatOutputs];
    store(out, low[r] + load(bias));
    store(out + kWidth, high[r] + load(bias + kWidth));
    __builtin_memcpy(y, out, static_cast<std::size_t>(n < kFloatOutputs ? n : kFloatOutputs) * sizeof(float));
  }
}

using FloatRows = void (*)(const FloatLinearArgs&, const float*, int, int, int, const float*);

constexpr int at_most_float(int rows) { return rows < kFloatRows ? rows : kFloatRows; }

// By the number of rows, from 1 on.
constexpr FloatRows kFloatKernels[12] = {
    float_rows<1>,
    float_rows<2>,
    float_rows<3>,
    float_rows<4>,
    float_rows<at_most_float(5)>,
    float_rows<at_most_float(6)>,
    float_rows<at_most_float(7)>,
    float_rows<at_most_float(8)>,
    float_rows<at_most_float(9)>,
    float_rows<at_most_float(10)>,
    float_rows<at_most_float(11)>,
    float_rows<at_most_float(12)>,
};

void multiply_float(const FloatLinearArgs& a) {
  const float* panel = a.panels;
  for (int first = 0; first < a.outputs; first += kPanel, panel += static_cast<std::size_t>(a.inputs) * kPanel) {
    const int n = a.outputs - first < kPanel ? a.outputs - first : kPanel;
    alignas(64) float bias[kPanel];
    load_bias(a.bias == nullptr ? nullptr : a.bias + first, n, bias);
    for (int row = 0; row < a.rows; row += kFloatRows) {
      const int rows = a.rows - row < kFloatRows ? a.rows - row : kFloatRows;
      for (int j = 0; j < n; j += kFloatOutputs) {
        kFloatKernels[rows - 1](a, panel + j, row, first + j, n - j, bias + j);
      }
    }
  }
}

}  // namespace
}  // namespace agentkv::cpu
