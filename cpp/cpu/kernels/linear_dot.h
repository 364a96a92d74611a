// Products of a vector of weights with four codes of a row: a 32-bit lane holds four codes of one output. Exact on
// every instruction set.
#pragma once

#include "cpu/kernels/linear_table.h"
#include "cpu/kernels/simd.h"

#if defined(__SSSE3__)
#include <tmmintrin.h>
#endif

namespace agentkv::cpu {
namespace {

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool kByteProducts = true;
#else
constexpr bool kByteProducts = false;
#endif

// What 8-bit codes carry when dot_bytes sees them: VNNI takes one operand without a sign.
constexpr int kByteOffset = kByteProducts ? 128 : 0;

AGENTKV_INLINE IVec codes_at(const std::int8_t* x) { return splat_int(load_as<std::int32_t>(x)); }

// Sums of four products per lane, of bytes with and bytes without a sign; or, where bytes are multiplied into pairs of
// 16-bit sums, those: 15 * 128 * kSums / 2 still fits. Two products must fit into 16 bits: w and x are not both -128.
AGENTKV_INLINE IVec dot_nibbles(IVec acc, IVec w, IVec x) {
#if defined(__AVX512VNNI__)
  return (IVec)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, (__m512i)x);
#elif defined(__AVXVNNI__)
  return (IVec)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)w, (__m256i)x);
#elif defined(__AVX512BW__)
  return (IVec)_mm512_add_epi16((__m512i)acc, _mm512_maddubs_epi16((__m512i)w, (__m512i)x));
#elif defined(__AVX2__) && defined(__FMA__)
  return (IVec)_mm256_add_epi16((__m256i)acc, _mm256_maddubs_epi16((__m256i)w, (__m256i)x));
#elif defined(__SSSE3__)
  return (IVec)_mm_add_epi16((__m128i)acc, _mm_maddubs_epi16((__m128i)w, (__m128i)x));
#elif defined(__ARM_FEATURE_DOTPROD)
  return (IVec)vdotq_s32((int32x4_t)acc, (int8x16_t)w, (int8x16_t)x);
#elif defined(__aarch64__)
  const int16x8_t low = vmull_s8(vget_low_s8((int8x16_t)w), vget_low_s8((int8x16_t)x));
  return (IVec)vpadalq_s16((int32x4_t)acc, vpaddq_s16(low, vmull_high_s8((int8x16_t)w, (int8x16_t)x)));
#else
#pragma GCC unroll 4
  for (int shift = 0; shift < 32; shift += 8) acc += (w << (24 - shift) >> 24) * (x << (24 - shift) >> 24);
  return acc;
#endif
}

// The same with four codes for all lanes, the four of that number from `codes` on. Arm multiplies with a lane of the
// sixteen codes that they are among, so that it is not spread first.
template <int kFour>
AGENTKV_INLINE IVec dot_nibbles_at(IVec acc, IVec w, const std::int8_t* codes) {
#if defined(__ARM_FEATURE_DOTPROD)
  const auto sixteen = load_as<int8x16_t>(codes + kFour / 4 * 16);
  return (IVec)vdotq_laneq_s32((int32x4_t)acc, (int8x16_t)w, sixteen, kFour % 4);
#else
  return dot_nibbles(acc, w, codes_at(codes + 4 * kFour));
#endif
}

// What dot_nibbles summed over kSums codes, as one number per lane.
AGENTKV_INLINE IVec nibble_sums(IVec acc) {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  return acc;
#elif defined(__AVX512BW__)
  return (IVec)_mm512_madd_epi16((__m512i)acc, _mm512_set1_epi16(1));
#elif defined(__AVX2__) && defined(__FMA__)
  return (IVec)_mm256_madd_epi16((__m256i)acc, _mm256_set1_epi16(1));
#elif defined(__SSSE3__)
  return (IVec)_mm_madd_epi16((__m128i)acc, _mm_set1_epi16(1));
#else
  return acc;
#endif
}

#if defined(__SSE2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
// acc + the sums of two products of 16-bit integers per lane.
AGENTKV_INLINE IVec add_pairs(IVec acc, IVec a, IVec b) {
#if defined(__AVX512BW__)
  return acc + (IVec)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__) && defined(__FMA__)
  return acc + (IVec)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
  return acc + (IVec)_mm_madd_epi16((__m128i)a, (__m128i)b);
#endif
}
#endif

// Sums of four products per lane; w carries kByteOffset.
AGENTKV_INLINE IVec dot_bytes(IVec acc, IVec w, IVec x) {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  return dot_nibbles(acc, w, x);
#elif defined(__SSE2__)
  typedef std::int16_t Shorts __attribute__((vector_size(4 * kWidth)));
  const auto even = [](IVec v) { return (IVec)((Shorts)v << 8 >> 8); };
  const auto odd = [](IVec v) { return (IVec)((Shorts)v >> 8); };
  return add_pairs(add_pairs(acc, even(w), even(x)), odd(w), odd(x));
#elif defined(__aarch64__) && !defined(__ARM_FEATURE_DOTPROD)
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8((int8x16_t)w), vget_low_s8((int8x16_t)x)));
  return acc + (IVec)vpaddq_s32(low, vpaddlq_s16(vmull_high_s8((int8x16_t)w, (int8x16_t)x)));
#else
  return dot_nibbles(acc, w, x);
#endif
}

// 8-bit codes as they are kept, plus 128, as dot_bytes takes them.
AGENTKV_INLINE IVec load_bytes(const std::byte* at) {
  const auto kept = load_as<IVec>(at);
  return kByteProducts ? kept : kept ^ splat_int(static_cast<std::int32_t>(0x80808080));
}

// kWidth scales of bfloat16.
AGENTKV_INLINE Vec load_scales(const std::byte* at) { return (Vec)(from_halves(load_as<HVec>(at)) << 16); }

// The first n, of which there may be none.
AGENTKV_INLINE void write_outputs(Vec out, float* y, int n) {
  if (n >= kWidth) return store(y, out);
  for (int i = 0; i < n; ++i) y[i] = out[i];
}

// What is left to do once a row's sum is there: zero, scale, bias, each rounded by itself. Writes the first n.
AGENTKV_INLINE void finish_outputs(Vec sum, Vec column, const RowCodes& x, int row, Vec bias, float* y, int n) {
  write_outputs((sum - splat(x.zeros[row]) * column) * splat(x.scales[row]) + bias, y, n);
}

// Where a row's outputs go.
AGENTKV_INLINE float* output_row(const LinearArgs& a, int row) {
  return a.y + static_cast<std::size_t>(a.order == nullptr ? row : a.order[row]) * a.y_stride;
}

// The panel's bias, zeros past the last output.
AGENTKV_INLINE void load_bias(const float* bias, int n, float* out) {
  if (bias != nullptr && n == kPanel) {
    __builtin_memcpy(out, bias, sizeof(float) * kPanel);
    return;
  }
  __builtin_memset(out, 0, sizeof(float) * kPanel);
  for (int i = 0; bias != nullptr && i < n; ++i) out[i] = bias[i];
}

}  // namespace
}  // namespace agentkv::cpu
