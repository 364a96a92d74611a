// The states of rows: how they begin, how those of two stretches of positions become one, and what they end in.
#pragma once

#include "cpu/kernels/softmax.h"

namespace agentkv::cpu {
namespace {

void init_state(float* state, int dim) {
  const int padded = padded_dim(dim);
  for (int i = 0; i < padded + kLanes; i += kWidth) store(state + i, Vec{});
  state[padded + kLanes] = kMinusInfinity;
}

// The state of the positions of `into` followed by those of `later`.
void merge_state(float* into, const float* later, int dim) {
  const int padded = padded_dim(dim), n = padded + kLanes;
  const float a = into[n], b = later[n];
  const float peak = a > b ? a : b;
  if (peak == kMinusInfinity) return;
  const Vec fade_a = exp2_nonpositive(splat(a - peak)), fade_b = exp2_nonpositive(splat(b - peak));
  for (int i = 0; i < n; i += kWidth) store(into + i, fma(load(later + i), fade_b, load(into + i) * fade_a));
  into[n] = peak;
}

void finish(const float* state, float sink, float* out, int dim) {
  const float* lanes = state + padded_dim(dim);
  float sum[kLanes];
  for (int i = 0; i < kLanes; ++i) sum[i] = lanes[i];
  for (int step = kLanes / 2; step >= 1; step /= 2) {
    for (int i = 0; i < step; ++i) sum[i] = sum[i] + sum[i + step];
  }
  float inverse = sum[0] == 0.0f ? 0.0f : 1.0f / sum[0];
  if (sink != kMinusInfinity) {
    const float seen = lanes[kLanes], peak = sink > seen ? sink : seen;
    const float fade = exp2_nonpositive(splat(seen - peak))[0], weight = exp2_nonpositive(splat(sink - peak))[0];
    inverse = fade / (sum[0] * fade + weight);
  }
  // The sign of a zero sum may depend on how many hidden positions were added; adding +0 gives every zero one sign.
  for (int i = 0; i < dim; ++i) out[i] = state[i] * inverse + 0.0f;
}

}  // namespace
}  // namespace agentkv::cpu
