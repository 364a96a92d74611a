// Integer products, exact on every instruction set. A lane of 32 bits holds kPack codes of K: four where the machine
// multiplies bytes (AVX-512 VNNI, AVX-VNNI, Arm dotprod), else two as 16-bit integers. V is always two to a lane.
#pragma once

#include "cpu/kernels/codes.h"
#include "cpu/kernels/simd.h"

namespace agentkv::cpu {
namespace {

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_DOTPROD)
constexpr int kPack = 4;
#else
constexpr int kPack = 2;
#endif

// VNNI multiplies unsigned bytes by signed ones: codes of K carry an offset there, which a query's bias takes away.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr int kOffset = 128;
#else
constexpr int kOffset = 0;
#endif

typedef std::int8_t Codes8 __attribute__((vector_size(8)));
typedef std::int8_t Codes32 __attribute__((vector_size(32)));
typedef std::int8_t Codes64 __attribute__((vector_size(64)));

// acc + a.low * b.low + a.high * b.high, per lane.
AGENTKV_INLINE IVec dot_pairs(IVec acc, IVec a, IVec b) {
#if defined(__AVX512VNNI__)
  return (IVec)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
  return acc + (IVec)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVXVNNI__)
  return (IVec)_mm256_dpwssd_avx_epi32((__m256i)acc, (__m256i)a, (__m256i)b);
#elif defined(__AVX2__) && defined(__FMA__)
  return acc + (IVec)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return acc + (IVec)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(__aarch64__)
  return acc + pair_products(a, b);
#else
  const IVec low_a = (IVec)((UVec)a << 16) >> 16, low_b = (IVec)((UVec)b << 16) >> 16;
  return acc + low_a * low_b + (a >> 16) * (b >> 16);
#endif
}

// acc + the products of kPack codes per lane, k as load_lanes gives it.
AGENTKV_INLINE IVec dot_codes(IVec acc, IVec k, IVec q) {
#if defined(__AVX512VNNI__)
  return (IVec)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)k, (__m512i)q);
#elif defined(__AVXVNNI__)
  return (IVec)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)k, (__m256i)q);
#elif defined(__ARM_FEATURE_DOTPROD)
  return (IVec)vdotq_s32((int32x4_t)acc, (int8x16_t)k, (int8x16_t)q);
#else
  return dot_pairs(acc, k, q);
#endif
}

// Codes as 16-bit integers, two to a lane.
template <class Codes>
AGENTKV_INLINE IVec widened(Codes codes) {
#if defined(__aarch64__)  // as in simd.h
  if constexpr (sizeof(Codes) == 8) return (IVec)vmovl_s8((int8x8_t)codes);
#endif
  typedef std::int16_t Wide __attribute__((vector_size(2 * sizeof(Codes))));
  return (IVec) __builtin_convertvector(codes, Wide);
}

// Codes as they lie, four to a lane and with the offset that `dot` takes off again.
template <class Codes>
AGENTKV_INLINE IVec offset_lanes(Codes codes) {
  return (IVec)(codes ^ (std::int8_t)kOffset);
}

template <class Row>
AGENTKV_INLINE Codes32 load32(const std::byte* row, int d) {
  if constexpr (Row::kElements == 1) return load_as<Codes32>(row + d);
  const Codes16 a = Row::load16(row, d), b = Row::load16(row, d + 16);
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22,
                                 23, 24, 25, 26, 27, 28, 29, 30, 31);
}

// kWidth lanes of a row, from lane `lane` on: a multiple of kWidth. May read, and never use, what lies past its end.
template <class Row>
AGENTKV_INLINE IVec load_lanes(const std::byte* row, int lane) {
  const int d = lane * kPack;
  if constexpr (kPack * kWidth == 8 && Row::kElements == 1) {
    return widened(load_as<Codes8>(row + d));
  } else if constexpr (kPack * kWidth == 8) {
    const Codes16 codes = Row::load16(row, d & ~15);
#if defined(__aarch64__)
    return widened((Codes8)(d & 8 ? vget_high_s8((int8x16_t)codes) : vget_low_s8((int8x16_t)codes)));
#else
    const Codes8 half = d & 8 ? __builtin_shufflevector(codes, codes, 8, 9, 10, 11, 12, 13, 14, 15)
                              : __builtin_shufflevector(codes, codes, 0, 1, 2, 3, 4, 5, 6, 7);
    return widened(half);
#endif
  } else if constexpr (kPack * kWidth == 16 && kPack == 2) {
    return widened(Row::load16(row, d));
  } else if constexpr (kPack * kWidth == 16) {
    return (IVec)Row::load16(row, d);
  } else if constexpr (kPack * kWidth == 32 && kPack == 2) {
    return widened(load32<Row>(row, d));
  } else if constexpr (kPack * kWidth == 32) {
    return offset_lanes(load32<Row>(row, d));
  } else {
    Codes64 codes;
    if constexpr (Row::kElements == 1) {
      codes = load_as<Codes64>(row + d);
    } else {
      const Codes32 halves[2] = {load32<Row>(row, d), load32<Row>(row, d + 32)};
      codes = load_as<Codes64>(halves);
    }
    return offset_lanes(codes);
  }
}

// Sixteen dims of two positions as pairs: lane d of the result is (low[d], high[d]).
template <class Row>
AGENTKV_INLINE void load_pairs(const std::byte* low, const std::byte* high, int d, IVec (&pairs)[16 / kWidth]) {
  const Codes16 a = Row::load16(low, d), b = Row::load16(high, d);
  if constexpr (kWidth == 16) {
    const Codes32 both = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9,
                                                 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    pairs[0] = widened(both);
  } else if constexpr (kWidth == 8) {
    const Codes16 first = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const Codes16 last = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    pairs[0] = widened(first);
    pairs[1] = widened(last);
  } else {
#if defined(__aarch64__)  // as in simd.h
    const int8x16_t first = vzip1q_s8((int8x16_t)a, (int8x16_t)b), last = vzip2q_s8((int8x16_t)a, (int8x16_t)b);
    const int8x8_t parts[4] = {vget_low_s8(first), vget_high_s8(first), vget_low_s8(last), vget_high_s8(last)};
#else
    const Codes8 parts[4] = {__builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19),
                             __builtin_shufflevector(a, b, 4, 20, 5, 21, 6, 22, 7, 23),
                             __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27),
                             __builtin_shufflevector(a, b, 12, 28, 13, 29, 14, 30, 15, 31)};
#endif
    for (int i = 0; i < 16 / kWidth; ++i) pairs[i] = widened(parts[i]);
  }
}

// sums[i] of all lanes of parts[i], as one vector.
AGENTKV_INLINE IVec sums_of(const IVec (&parts)[kWidth]) {
  Vec rows[kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) rows[i] = (Vec)parts[i];
  transpose(rows);
  IVec sum = (IVec)rows[0];
#pragma GCC unroll 16
  for (int i = 1; i < kWidth; ++i) sum += (IVec)rows[i];
  return sum;
}

}  // namespace
}  // namespace agentkv::cpu
