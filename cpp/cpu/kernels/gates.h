// Gates of layers: x times a logistic function of it, that function, and softplus.
#pragma once

#include "cpu/kernels/simd.h"
#include "cpu/kernels/softmax.h"

namespace agentkv::cpu {
namespace {

constexpr float kLog2E = 0x1.715476p+0f;

// 1 / (1 + 2^-t). NaN stays NaN.
AGENTKV_INLINE Vec logistic2(Vec t) {
  const Vec small = exp2_nonpositive(select(t > Vec{}, -t, t)), one = splat(1.0f);
  return select(t > Vec{}, one, small) / (one + small);
}

// x / (1 + e^-x).
struct Silu {
  static AGENTKV_INLINE Vec of(Vec x) { return x * logistic2(x * splat(kLog2E)); }
};

// x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), which is x / (1 + e^-2u). Hendrycks and Gimpel 2016.
struct TanhGelu {
  static AGENTKV_INLINE Vec of(Vec x) {
    const Vec cubic = fma(x * x, splat(0.044715f), splat(1.0f)) * x;
    return x * logistic2(cubic * splat(2.0f * 0x1.988454p-1f * kLog2E));
  }
};

// 1 / (1 + e^-x).
struct Sigmoid {
  static AGENTKV_INLINE Vec of(Vec x) { return logistic2(x * splat(kLog2E)); }
};

// log(1 + e^x) = max(x, 0) + log(1 + s) with s = e^-|x|, and log(1 + s) = 2 atanh(s / (2 + s)), whose series ends soon.
struct Softplus {
  static AGENTKV_INLINE Vec of(Vec x) {
    const Vec s = exp2_nonpositive(select(x > Vec{}, -x, x) * splat(kLog2E));
    const Vec z = s / (s + splat(2.0f)), z2 = z * z;
    Vec sum = splat(1.0f / 15.0f);
    for (int odd = 13; odd > 0; odd -= 2) sum = fma(sum, z2, splat(1.0f / static_cast<float>(odd)));
    return select(x > Vec{}, x, Vec{}) + splat(2.0f) * z * sum;
  }
};

template <class Gate>
AGENTKV_INLINE Vec gated(Vec x, const float* up, int i) {
  return up == nullptr ? Gate::of(x) : Gate::of(x) * load(up + i);
}

template <class Gate>
void gate_row(const float* x, const float* up, float* y, int n) {
  int i = 0;
  for (; i + kWidth <= n; i += kWidth) store(y + i, gated<Gate>(load(x + i), up, i));
  if (i == n) return;
  float rest_x[kWidth] = {}, rest_up[kWidth] = {};
  const std::size_t bytes = static_cast<std::size_t>(n - i) * sizeof(float);
  __builtin_memcpy(rest_x, x + i, bytes);
  if (up != nullptr) __builtin_memcpy(rest_up, up + i, bytes);
  const Vec rest = gated<Gate>(load(rest_x), up == nullptr ? nullptr : rest_up, 0);
  __builtin_memcpy(y + i, &rest, bytes);
}

}  // namespace
}  // namespace agentkv::cpu
