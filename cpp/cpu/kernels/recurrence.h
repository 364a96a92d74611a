// Sums of linear attention, in one order on every instruction set.
#pragma once

#include "cpu/kernels/gates.h"
#include "cpu/kernels/simd.h"
#include "cpu/kernels/softmax.h"
#include "cpu/kernels/table.h"

namespace agentkv::cpu {
namespace {

float dot_row(const float* a, const float* b, int n) {
  float lanes[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += a[i + j] * b[i + j];
  }
  for (int j = 0; i < n; ++i, ++j) lanes[j] += a[i] * b[i];
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

// e^x for x <= 0, and for others 1.
AGENTKV_INLINE Vec left_of(Vec x) {
  const Vec scaled = x * splat(kLog2E);
  return exp2_nonpositive(select(scaled > Vec{}, Vec{}, scaled));
}

// The first n of kWidth numbers; zeros behind them.
AGENTKV_INLINE Vec load_first(const float* p, int n) {
  if (n >= kWidth) return load(p);
  float part[kWidth] = {};
  __builtin_memcpy(part, p, static_cast<std::size_t>(n) * sizeof(float));
  return load(part);
}
AGENTKV_INLINE void store_first(float* p, Vec v, int n) {
  if (n >= kWidth) return store(p, v);
  __builtin_memcpy(p, &v, static_cast<std::size_t>(n) * sizeof(float));
}

void fades_of(const float* decays, float now, float* y, int n) {
  for (int i = 0; i < n; i += kWidth) {
    store_first(y + i, left_of(splat(now) - load_first(decays + i, n - i)), n - i);
  }
}

AGENTKV_INLINE Vec left_between(const float* later, const float* earlier, int i, int n) {
  const Vec end = load_first(later + i, n - i);
  return left_of(earlier == nullptr ? end : end - load_first(earlier + i, n - i));
}

void fade_row(const float* x, const float* later, const float* earlier, float* y, int n) {
  for (int i = 0; i < n; i += kWidth) {
    store_first(y + i, load_first(x + i, n - i) * left_between(later, earlier, i, n), n - i);
  }
}

float faded_dot_row(const float* a, const float* b, const float* later, const float* earlier, int n) {
  float lanes[kLanes] = {};
  for (int i = 0; i < n; i += kWidth) {
    float* sums = lanes + i % kLanes;
    const Vec product = load_first(a + i, n - i) * load_first(b + i, n - i);
    store(sums, fma(product, left_between(later, earlier, i, n), load(sums)));
  }
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

// Outputs and vectors of their columns that stay in registers while rows pass.
template <int Outputs, int Vecs>
AGENTKV_INLINE void add_strip(const float* const* rows, int n_rows, const float* weights, std::ptrdiff_t weight_stride,
                              float* y, std::ptrdiff_t y_stride, int column) {
  Vec sum[Outputs][Vecs];
  for (int o = 0; o < Outputs; ++o) {
    for (int v = 0; v < Vecs; ++v) sum[o][v] = load(y + o * y_stride + column + v * kWidth);
  }
  for (int r = 0; r < n_rows; ++r) {
    Vec x[Vecs];
    for (int v = 0; v < Vecs; ++v) x[v] = load(rows[r] + column + v * kWidth);
    for (int o = 0; o < Outputs; ++o) {
      const Vec weight = splat(weights[o * weight_stride + r]);
      for (int v = 0; v < Vecs; ++v) sum[o][v] = fma(weight, x[v], sum[o][v]);
    }
  }
  for (int o = 0; o < Outputs; ++o) {
    for (int v = 0; v < Vecs; ++v) store(y + o * y_stride + column + v * kWidth, sum[o][v]);
  }
}

template <int Outputs, int Vecs>
AGENTKV_INLINE void add_outputs(const float* const* rows, int n_rows, const float* weights,
                                std::ptrdiff_t weight_stride, float* y, std::ptrdiff_t y_stride, int n) {
  int column = 0;
  for (; column + Vecs * kWidth <= n; column += Vecs * kWidth) {
    add_strip<Outputs, Vecs>(rows, n_rows, weights, weight_stride, y, y_stride, column);
  }
  for (; column + kWidth <= n; column += kWidth) {
    add_strip<Outputs, 1>(rows, n_rows, weights, weight_stride, y, y_stride, column);
  }
  for (int o = 0; column < n && o < Outputs; ++o) {
    Vec sum = load_first(y + o * y_stride + column, n - column);
    for (int r = 0; r < n_rows; ++r) {
      sum = fma(splat(weights[o * weight_stride + r]), load_first(rows[r] + column, n - column), sum);
    }
    store_first(y + o * y_stride + column, sum, n - column);
  }
}

// An output's bits do not depend on how many there are.
void add_products_of(const float* const* rows, int n_rows, const float* weights, std::ptrdiff_t weight_stride,
                     int n_outputs, float* y, std::ptrdiff_t y_stride, int n) {
  constexpr int kVecs = kWidth == 16 ? 4 : 2;
  int o = 0;
  for (; o + 4 <= n_outputs; o += 4) {
    add_outputs<4, kVecs>(rows, n_rows, weights + o * weight_stride, weight_stride, y + o * y_stride, y_stride, n);
  }
  for (; o < n_outputs; ++o) {
    add_outputs<1, 2 * kVecs>(rows, n_rows, weights + o * weight_stride, weight_stride, y + o * y_stride, y_stride, n);
  }
}

void scan_row(const ScanRow& r, int n) {
  for (int i = 0; i < n; i += kWidth) {
    const Vec x = load_first(r.x + i, n - i), decay = load_first(r.decay + i, n - i);
    Vec sum = Vec{};
    for (int s = 0; s < r.n_states; ++s) {
      float* state = r.state + s * r.state_stride + i;
      const Vec left = left_of(decay * load_first(r.rates + s * r.rate_stride + i, n - i));
      const Vec next = fma(left, load_first(state, n - i), splat(r.b[s]) * x);
      store_first(state, next, n - i);
      if (r.c != nullptr) sum = fma(splat(r.c[s]), next, sum);
    }
    if (r.out != nullptr) store_first(r.out + i, sum, n - i);
  }
}

}  // namespace
}  // namespace agentkv::cpu
