// Numbers of a row as int8 codes, rounded alike on every instruction set.
#pragma once

#include "cpu/kernels/simd.h"

namespace agentkv::cpu {
namespace {

constexpr float kNoScale = 0x1p-100f;  // below it a step has no inverse: what has such a one counts as zeros

// The nearest integer, ties to even; |x| < 2^22.
AGENTKV_INLINE IVec nearest(Vec x) { return (IVec)(x + splat(12582912.0f)) - 0x4b400000; }

AGENTKV_INLINE IVec clamped(IVec codes) {
  codes = codes < -128 ? splat_int(-128) : codes;
  return codes > 127 ? splat_int(127) : codes;
}

// Writes kWidth codes; returns them.
AGENTKV_INLINE IVec write_codes(Vec x, Vec inverse, IVec zero, std::int8_t* out) {
  const IVec codes = clamped(nearest(x * inverse) + zero);
  store_low_bytes(out, codes);
  return codes;
}

AGENTKV_INLINE std::int32_t total_of(IVec v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32((__m512i)v);
#else
  std::int32_t total = 0;
  for (int i = 0; i < kWidth; ++i) total += v[i];
  return total;
#endif
}

AGENTKV_INLINE std::int32_t most_of(IVec v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_epi32((__m512i)v);
#else
  std::int32_t most = v[0];
  for (int i = 1; i < kWidth; ++i) most = v[i] > most ? v[i] : most;
  return most;
#endif
}

}  // namespace
}  // namespace agentkv::cpu
