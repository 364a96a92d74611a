// The states of rows: how they begin, and how those of two stretches of positions become one.
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

}  // namespace
}  // namespace agentkv::cpu
