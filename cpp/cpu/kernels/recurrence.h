// Sums of linear attention, in one order on every instruction set.
#pragma once

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

constexpr int kStrip = 64;  // of y, which stays in registers meanwhile

void add_weighted_rows(const float* const* rows, const float* weights, int n_rows, float* y, int n) {
  int i = 0;
  for (; i + kStrip <= n; i += kStrip) {
    float sum[kStrip];
    for (int j = 0; j < kStrip; ++j) sum[j] = y[i + j];
    for (int r = 0; r < n_rows; ++r) {
      const float* x = rows[r] + i;
      const float weight = weights[r];
      for (int j = 0; j < kStrip; ++j) sum[j] += weight * x[j];
    }
    for (int j = 0; j < kStrip; ++j) y[i + j] = sum[j];
  }
  for (int r = 0; r < n_rows; ++r) {
    for (int j = i; j < n; ++j) y[j] += weights[r] * rows[r][j];
  }
}

}  // namespace
}  // namespace agentkv::cpu
