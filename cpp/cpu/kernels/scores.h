// What becomes of one row's scores of one block before their softmax.
#pragma once

#include "cpu/kernels/softmax.h"

namespace agentkv::cpu {
namespace {

// cap * tanh(x / cap): 1 - 2^(-2 log2(e) |x|) over 1 plus the same, to a few roundings of the cap.
AGENTKV_INLINE Vec capped(Vec x, float cap) {
  constexpr float kTwice = 2.88539008f;  // 2 log2(e)
  const Vec part = x / splat(cap);
  const Vec size = larger(part, -part);
  const Vec rest = exp2_nonpositive(-size * splat(kTwice));
  const Vec bent = (splat(1.0f) - rest) / (splat(1.0f) + rest) * splat(cap);
  return select(part < Vec{}, -bent, bent);
}

// Scores [kBlock] of row r, in place.
AGENTKV_INLINE void bend_scores(const BlockArgs& a, int r, float* scores) {
  if (a.cap != 0.0f) {
    for (int p = 0; p < kBlock; p += kWidth) store(scores + p, capped(load(scores + p), a.cap));
  }
  if (a.slopes == nullptr) return;
  Vec steps;
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) steps[i] = static_cast<float>(i);
  const Vec slope = splat(a.slopes[r]);
  for (int p = 0; p < kBlock; p += kWidth) {
    const Vec distance = splat(a.distances[r] + static_cast<float>(p)) + steps;
    store(scores + p, fma(slope, distance, load(scores + p)));
  }
}

}  // namespace
}  // namespace agentkv::cpu
