// Norms and ropes of one row. Sums run over fixed lanes, so that a row has the same bits on every instruction set.
#pragma once

#include "cpu/kernels/table.h"

namespace agentkv::cpu {
namespace {

float sum_of_squares(const float* x, int n) {
  float lanes[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += x[i + j] * x[i + j];
  }
  for (int j = 0; i < n; ++i, ++j) lanes[j] += x[i] * x[i];
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

void rms_norm_row(const float* x, const float* weight, float eps, float* y, int n) {
  const float scale = 1.0f / __builtin_sqrtf(sum_of_squares(x, n) / static_cast<float>(n) + eps);
  for (int i = 0; i < n; ++i) y[i] = x[i] * scale * weight[i];
}

void rotate_row(const float* x, const float* cos, const float* sin, int pairs, bool interleaved, float* y) {
  const int step = interleaved ? 2 : 1, partner = interleaved ? 1 : pairs;
  for (int i = 0; i < pairs; ++i) {
    const int a = i * step, b = a + partner;
    const float xa = x[a], xb = x[b];
    y[a] = xa * cos[i] - xb * sin[i];
    y[b] = xb * cos[i] + xa * sin[i];
  }
}

void add_row(const float* a, const float* b, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

void multiply_row(const float* a, const float* b, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = a[i] * b[i];
}

void convolve_row(const float* const* taps, int width, const float* weight, const float* bias, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = bias == nullptr ? 0.0f : bias[i];
  for (int j = 0; j < width; ++j) {
    const float* x = taps[j];
    if (x == nullptr) continue;
    for (int i = 0; i < n; ++i) y[i] = y[i] + x[i] * weight[i * width + j];
  }
}

void weighted_sum_row(const float* rows, std::ptrdiff_t stride, const float* weights, int n_rows, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = rows[i] * weights[0];
  for (int r = 1; r < n_rows; ++r) {
    rows += stride;
    for (int i = 0; i < n; ++i) y[i] = y[i] + rows[i] * weights[r];
  }
}

}  // namespace
}  // namespace agentkv::cpu
