// The fixed rotation of K, Q and V rows before they become codes: random signs, then a Hadamard transform, so that what
// one channel has too much of is spread over all (QuaRot, Ashkboos et al. 2024). It depends on nothing but head_dim,
// and turning Q as K leaves their products as they are. Additions and multiplications only: the same bits on every
// level.
#pragma once

#include "cpu/kernels/simd.h"
#include "cpu/kernels/table.h"

namespace agentkv::cpu {
namespace {

// Bit i % 256 of either row, set: coordinate i changes its sign. The fraction of pi.
constexpr std::uint64_t kSignBits[2][4] = {
    {0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0, 0x082efa98ec4e6c89},
    {0x452821e638d01377, 0xbe5466cf34e90c6c, 0xc0ac29b7c97c50dd, 0x3f84d5b5b5470917}};

struct Signs {
  float of[2][kMaxHeadDim];
  constexpr Signs() : of() {
    for (int s = 0; s < 2; ++s) {
      for (int i = 0; i < kMaxHeadDim; ++i) of[s][i] = (kSignBits[s][i / 64 % 4] >> (i % 64)) & 1 ? -1.0f : 1.0f;
    }
  }
};
constexpr Signs kSigns;

inline int largest_power_of_two(int n) { return 1 << (31 - __builtin_clz(static_cast<unsigned>(n))); }

// One step of the transform: pairs that lie n / 2 apart become neighbours. After log2(n) of them every coordinate has
// met every other, and all are in their natural order again.
inline void butterfly(const float* __restrict x, float* __restrict y, int n) {
  const int half = n / 2;
  for (int i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    y[2 * i] = a + b;
    y[2 * i + 1] = a - b;
  }
}

// x [n] times the Hadamard matrix, unscaled; n a power of two.
inline void hadamard(float* x, int n) {
  alignas(64) float other[kMaxHeadDim];
  int left = n;
  for (; left >= 4; left /= 4) {
    butterfly(x, other, n);
    butterfly(other, x, n);
  }
  if (left == 2) {
    butterfly(x, other, n);
    __builtin_memcpy(x, other, static_cast<std::size_t>(n) * sizeof(float));
  }
}

inline void scale_signed(float* x, const float* signs, float scale, int n) {
  for (int i = 0; i < n; ++i) x[i] = x[i] * (signs[i] * scale);
}

// In place. Where dim is no power of two, the first coordinates are turned, and then the last ones, as many as the
// largest power of two below it.
inline void turn(float* x, int dim) {
  const int n = largest_power_of_two(dim);
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(n));
  scale_signed(x, kSigns.of[0], scale, n);
  hadamard(x, n);
  if (n == dim) return;
  scale_signed(x + dim - n, kSigns.of[1], scale, n);
  hadamard(x + dim - n, n);
}

// The way back.
inline void turn_back(float* x, int dim) {
  const int n = largest_power_of_two(dim);
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(n));
  if (n != dim) {
    hadamard(x + dim - n, n);
    scale_signed(x + dim - n, kSigns.of[1], scale, n);
  }
  hadamard(x, n);
  scale_signed(x, kSigns.of[0], scale, n);
}

}  // namespace
}  // namespace agentkv::cpu
