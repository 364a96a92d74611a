// The online softmax: one row's scores of one block into weights, and the state that runs from block to block.
#pragma once

#include "cpu/kernels/simd.h"
#include "cpu/kernels/table.h"

namespace agentkv::cpu {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// 2^x for x <= 0, to 1.5 units in the last place; exactly 1 at 0, exactly 0 below -126; NaN stays NaN.
AGENTKV_INLINE Vec exp2_nonpositive(Vec x) {
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: the sum's low bits are x rounded to an integer
  const Vec shifted = x + magic;
  const Vec r = x - (shifted - magic);
  Vec g = splat(0x1.5bba18p-10f);
  g = fma(g, r, splat(0x1.3cea88p-7f));
  g = fma(g, r, splat(0x1.c6b752p-5f));
  g = fma(g, r, splat(0x1.ebf9bcp-3f));
  g = fma(g, r, splat(0x1.62e42ap-1f));
  g = fma(g, r, splat(1.0f));
  const Vec y = (Vec)((UVec)g + ((UVec)shifted << 23));
  return select(x < splat(-126.0f), Vec{}, y);
}

AGENTKV_INLINE float largest(Vec v) {
  float lanes[kWidth];
  store(lanes, v);
#pragma GCC unroll 4
  for (int step = kWidth / 2; step >= 1; step /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < step; ++i) lanes[i] = lanes[i] > lanes[i + step] ? lanes[i] : lanes[i + step];
  }
  return lanes[0];
}

// Replaces scores [kBlock] by weights, updates denominators and peak, and returns the factor by which the sum fades.
AGENTKV_INLINE float softmax_block(float* scores, std::uint64_t visible, float* state, int padded) {
  constexpr int n = kBlock / kWidth, lanes = kLanes / kWidth;
  float* denominators = state + padded;
  float& peak = state[padded + kLanes];
  Vec s[n];
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) s[i] = load(scores + i * kWidth);
  if (visible != ~std::uint64_t{0}) {
    IVec bit;
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) bit[i] = 1 << i;
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) {
      const IVec bits = splat_int(static_cast<std::int32_t>((visible >> (i * kWidth)) & 0xffff));
      s[i] = select((bits & bit) != 0, s[i], splat(kMinusInfinity));
    }
  }
  Vec top[n];
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) top[i] = s[i];
#pragma GCC unroll 4
  for (int step = n / 2; step >= 1; step /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < step; ++i) top[i] = larger(top[i], top[i + step]);
  }
  const float highest = largest(top[0]);
  const float old_peak = peak;
  const float new_peak = highest > old_peak ? highest : old_peak;
  // The row sees something in the block, so new_peak is a number.
  const Vec shift = splat(new_peak);
  const Vec fade = exp2_nonpositive(splat(old_peak) - shift);
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) {
    s[i] = exp2_nonpositive(s[i] - shift);
    store(scores + i * kWidth, s[i]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < lanes; ++i) {
    const Vec sum = (s[i] + s[lanes + i]) + (s[2 * lanes + i] + s[3 * lanes + i]);
    store(denominators + i * kWidth, fma(load(denominators + i * kWidth), fade, sum));
  }
  peak = new_peak;
  return fade[0];
}

}  // namespace
}  // namespace agentkv::cpu
