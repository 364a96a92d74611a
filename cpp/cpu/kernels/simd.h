// Native float vectors of the instruction set this file is compiled for. Multiplication and addition are never
// contracted by the compiler (-ffp-contract=off); where a fused step is meant, fma() says so.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define AGENTKV_INLINE inline __attribute__((always_inline))

namespace agentkv::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

typedef float Vec __attribute__((vector_size(4 * kWidth)));
typedef std::int32_t IVec __attribute__((vector_size(4 * kWidth)));
typedef std::uint32_t UVec __attribute__((vector_size(4 * kWidth)));
typedef std::uint16_t HVec __attribute__((vector_size(2 * kWidth)));
typedef std::int8_t ByteVec __attribute__((vector_size(kWidth)));
typedef std::uint8_t UByteVec __attribute__((vector_size(kWidth)));

template <class V>
AGENTKV_INLINE V load_as(const void* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof(V));
  return v;
}
AGENTKV_INLINE Vec load(const float* p) { return load_as<Vec>(p); }
// The same address, which the compiler takes for another one: what is read there for one vector of outputs is otherwise
// kept for the next one, on the stack, since there are not so many registers.
template <class T>
AGENTKV_INLINE const T* read_anew(const T* at) {
  __asm__ volatile("" : "+r"(at));
  return at;
}
template <class V>
AGENTKV_INLINE void store(void* p, V v) {
  __builtin_memcpy(p, &v, sizeof(V));
}

// Lanes out of narrower integers, and the low bytes of lanes. For Arm GCC would take each number by itself.
AGENTKV_INLINE UVec from_halves(HVec halves) {
#if defined(__aarch64__)
  return (UVec)vmovl_u16((uint16x4_t)halves);
#else
  return __builtin_convertvector(halves, UVec);
#endif
}
AGENTKV_INLINE IVec load_bytes_as_lanes(const void* at) {
#if defined(__aarch64__)
  const int8x8_t bytes = vreinterpret_s8_s32(vdup_n_s32(load_as<std::int32_t>(at)));
  return (IVec)vmovl_s16(vget_low_s16(vmovl_s8(bytes)));
#else
  return __builtin_convertvector(load_as<ByteVec>(at), IVec);
#endif
}
AGENTKV_INLINE void store_low_bytes(void* at, IVec lanes) {
#if defined(__aarch64__)
  const int16x4_t halves = vmovn_s32((int32x4_t)lanes);
  store(at, vget_lane_s32(vreinterpret_s32_s8(vmovn_s16(vcombine_s16(halves, halves))), 0));
#else
  store(at, __builtin_convertvector(lanes, ByteVec));
#endif
}

AGENTKV_INLINE Vec splat(float x) {
#if defined(__AVX512F__)
  return (Vec)_mm512_set1_ps(x);
#elif defined(__AVX2__) && defined(__FMA__)
  return (Vec)_mm256_set1_ps(x);
#else
  return Vec{x, x, x, x};
#endif
}
AGENTKV_INLINE IVec splat_int(std::int32_t x) { return x - IVec{}; }

// a * b + c; rounded once where the machine has FMA, twice where it has not, but always the same on one machine.
AGENTKV_INLINE Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
  return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

#if defined(__aarch64__)
// a.low * b.low + a.high * b.high of 16-bit integers, per lane.
AGENTKV_INLINE IVec pair_products(IVec a, IVec b) {
  const int32x4_t low = vmull_s16(vget_low_s16((int16x8_t)a), vget_low_s16((int16x8_t)b));
  return (IVec)vpaddq_s32(low, vmull_high_s16((int16x8_t)a, (int16x8_t)b));
}
#endif

AGENTKV_INLINE Vec select(IVec mask, Vec yes, Vec no) { return (Vec)(((IVec)yes & mask) | ((IVec)no & ~mask)); }
// a where a > b, else b: of a NaN and a number, the second operand.
AGENTKV_INLINE Vec larger(Vec a, Vec b) {
#if defined(__AVX512F__)
  return (Vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__) && defined(__FMA__)
  return (Vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return select(a > b, a, b);
#endif
}
// a where a < b, else b.
AGENTKV_INLINE Vec smaller(Vec a, Vec b) {
#if defined(__AVX512F__)
  return (Vec)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__) && defined(__FMA__)
  return (Vec)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return select(a < b, a, b);
#endif
}

// rows[i][j] <-> rows[j][i].
AGENTKV_INLINE void transpose(Vec (&rows)[kWidth]) {
#if defined(__AVX512F__)
  __m512 a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps((__m512)rows[i], (__m512)rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_ps((__m512)rows[i], (__m512)rows[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const __m512d lo = _mm512_castps_pd(a[i + j]), hi = _mm512_castps_pd(a[i + j + 2]);
      b[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(lo, hi));
      b[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(lo, hi));
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 p = _mm512_shuffle_f32x4(b[i], b[i + 4], 0x88), q = _mm512_shuffle_f32x4(b[i], b[i + 4], 0xdd);
    const __m512 r = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0x88);
    const __m512 s = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0xdd);
    rows[i] = (Vec)_mm512_shuffle_f32x4(p, r, 0x88);
    rows[i + 4] = (Vec)_mm512_shuffle_f32x4(q, s, 0x88);
    rows[i + 8] = (Vec)_mm512_shuffle_f32x4(p, r, 0xdd);
    rows[i + 12] = (Vec)_mm512_shuffle_f32x4(q, s, 0xdd);
  }
#elif defined(__AVX2__) && defined(__FMA__)
  __m256 a[8], b[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps((__m256)rows[i], (__m256)rows[i + 1]);
    a[i + 1] = _mm256_unpackhi_ps((__m256)rows[i], (__m256)rows[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const __m256d lo = _mm256_castps_pd(a[i + j]), hi = _mm256_castps_pd(a[i + j + 2]);
      b[i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(lo, hi));
      b[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(lo, hi));
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    rows[i] = (Vec)_mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
    rows[i + 4] = (Vec)_mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
  }
#else
  const Vec a = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
  const Vec b = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
  const Vec c = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
  const Vec d = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
  rows[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
  rows[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
  rows[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
  rows[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
#endif
}

}  // namespace
}  // namespace agentkv::cpu
