// Rows as codes: what int8 and int4 pools store, and what the integer kernels read. A code stands for an integer of
// [-127, 127]; a row is these integers times one float32 scale, in the rotated basis (rotation.h).
//   int8: the integer itself, one byte each; the row's largest magnitude is 127
//   int4: an index of kLevels, whose integers lie as a normal distribution wants them (Lloyd-Max: what is rotated is
//         close to normal); the scale is the least-squares one for the levels that were picked
// Everything is computed in one fixed order, from the row alone: the same bytes on every instruction set.
#pragma once

#include "cpu/kernels/rotation.h"
#include "cpu/kernels/simd.h"
#include "cpu/kernels/table.h"

#if defined(__SSSE3__)
#include <tmmintrin.h>
#endif

namespace agentkv::cpu {
namespace {

typedef std::int8_t Codes16 __attribute__((vector_size(16)));

constexpr float kTopCode = 127.0f;
constexpr float kTiny = 0x1p-100f;  // rows below it are zeros
constexpr float kNaN = __builtin_nanf("");

// Positive levels first, then the same ones negative. 127 is 2.7326 standard deviations.
constexpr Codes16 kLevels = {6, 18, 31, 44, 58, 75, 96, 127, -6, -18, -31, -44, -58, -75, -96, -127};
// Between which levels a magnitude lies, in standard deviations.
constexpr float kThresholds[7] = {0.2582f, 0.5224f, 0.7996f, 1.0993f, 1.4371f, 1.8435f, 2.4008f};

AGENTKV_INLINE Codes16 levels_of(Codes16 nibbles) {
#if defined(__SSSE3__)
  return (Codes16)_mm_shuffle_epi8((__m128i)kLevels, (__m128i)nibbles);
#elif defined(__aarch64__)
  return (Codes16)vqtbl1q_s8((int8x16_t)kLevels, (uint8x16_t)nibbles);
#else
  Codes16 levels;
  for (int i = 0; i < 16; ++i) levels[i] = kLevels[nibbles[i]];
  return levels;
#endif
}

// A row, turned and padded with zeros, as it is looked at to become codes.
struct TurnedRow {
  alignas(64) float x[kMaxHeadDim];
  int padded;  // a multiple of 32

  AGENTKV_INLINE TurnedRow(const float* row, int dim) : padded((dim + 31) / 32 * 32) {
    __builtin_memcpy(x, row, static_cast<std::size_t>(dim) * sizeof(float));
    for (int i = dim; i < padded; ++i) x[i] = 0.0f;
    turn(x, dim);
  }
};

// Adds up kLanes partial sums, always in the same order.
AGENTKV_INLINE float sum_of_lanes(const Vec (&lanes)[kLanes / kWidth]) {
  float sum[kLanes];
  for (int i = 0; i < kLanes / kWidth; ++i) store(sum + i * kWidth, lanes[i]);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) sum[j] += sum[j + width];
  }
  return sum[0];
}

// Codes of largest magnitude 127 and the scale that goes with them; zeros and NaN for a row that is not finite.
AGENTKV_INLINE float int8_codes(const TurnedRow& row, std::int8_t* codes) {
  Vec top = {}, bad = {};
  for (int d = 0; d < row.padded; d += kWidth) {
    const Vec x = load(row.x + d);
    top = larger((Vec)((UVec)x & 0x7fffffff), top);
    bad += x - x;
  }
  float largest = 0.0f, bad_sum = 0.0f;
  for (int i = 0; i < kWidth; ++i) {
    largest = top[i] > largest ? top[i] : largest;
    bad_sum += bad[i];
  }
  if (bad_sum != 0.0f || largest < kTiny) {  // NaN is not 0
    for (int d = 0; d < row.padded; ++d) codes[d] = 0;
    return bad_sum != 0.0f ? kNaN : 0.0f;
  }
  const Vec inverse = splat(kTopCode / largest), magic = splat(12582912.0f);  // 1.5 * 2^23 rounds, half to even
  for (int d = 0; d < row.padded; d += kWidth) {
    const Vec rounded = load(row.x + d) * inverse + magic;
    store_low_bytes(codes + d, (IVec)rounded - 0x4b400000);
  }
  return largest * (1.0f / kTopCode);
}

struct Int8Row {
  static constexpr int kElements = 1;  // per byte
  static AGENTKV_INLINE Codes16 load16(const std::byte* row, int d) { return load_as<Codes16>(row + d); }
  static void store_row(const float* src, std::byte* dst, float* scale, int dim) {
    alignas(64) std::int8_t codes[kMaxHeadDim];
    *scale = int8_codes(TurnedRow(src, dim), codes);
    __builtin_memcpy(dst, codes, static_cast<std::size_t>(dim));
  }
};

// 32 codes in 16 bytes: the first 16 of them in the low halves, the others in the high ones.
struct Int4Row {
  static constexpr int kElements = 2;
  static AGENTKV_INLINE Codes16 load16(const std::byte* row, int d) {
    const Codes16 bytes = load_as<Codes16>(row + d / 32 * 16);
    typedef std::uint16_t Halves __attribute__((vector_size(16)));
    return levels_of((d & 16 ? (Codes16)((Halves)bytes >> 4) : bytes) & 15);
  }
  static void store_row(const float* src, std::byte* dst, float* scale, int dim) {
    const TurnedRow row(src, dim);
    constexpr int n_lanes = kLanes / kWidth;
    Vec lanes[n_lanes] = {};
    for (int d = 0; d < row.padded; d += kLanes) {
      for (int i = 0; i < n_lanes; ++i) {
        const Vec x = load(row.x + d + i * kWidth);
        lanes[i] += x * x;
      }
    }
    const float deviation = __builtin_sqrtf(sum_of_lanes(lanes) / static_cast<float>(dim));
    const bool finite = deviation - deviation == 0.0f;
    const auto bytes = static_cast<std::size_t>(row.padded / 2);
    if (!finite || deviation < kTiny) {
      *scale = finite ? 0.0f : kNaN;
      __builtin_memset(dst, 0, bytes);
      return;
    }
    alignas(64) std::int32_t nibbles[kMaxHeadDim];
    const Vec inverse = splat(1.0f / deviation);
    for (int d = 0; d < row.padded; d += kWidth) {
      const Vec x = load(row.x + d) * inverse, magnitude = (Vec)((UVec)x & 0x7fffffff);
      IVec nibble = (IVec)(x < Vec{}) & 8;
      for (const float threshold : kThresholds) nibble -= (IVec)(magnitude > splat(threshold));
      store(nibbles + d, nibble);
    }
    Vec products[n_lanes] = {};
    int squares = 0;
    for (int d = 0; d < row.padded; d += kLanes) {
      alignas(64) float levels[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const int level = d + i < dim ? kLevels[nibbles[d + i]] : 0;
        squares += level * level;
        levels[i] = static_cast<float>(level);
      }
      for (int i = 0; i < n_lanes; ++i) products[i] += load(row.x + d + i * kWidth) * load(levels + i * kWidth);
    }
    *scale = sum_of_lanes(products) / static_cast<float>(squares);
    for (int d = 0; d < row.padded; d += 32) {
      for (int i = 0; i < 16; ++i) {
        dst[d / 2 + i] = static_cast<std::byte>(nibbles[d + i] | nibbles[d + 16 + i] << 4);
      }
    }
  }
};

template <class Row>
void load_code_row(const std::byte* src, float scale, float* dst, int dim) {
  for (int d = 0; d < dim; d += 16) {
    const Codes16 codes = Row::load16(src, d);
    for (int i = 0; i < 16; ++i) dst[d + i] = static_cast<float>(codes[i]) * scale;
  }
  turn_back(dst, dim);
}

}  // namespace
}  // namespace agentkv::cpu
