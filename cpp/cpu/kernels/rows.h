// Conversion of stored K and V rows to floats and back. A loader is the only thing a kernel knows of a pool's dtype.
#pragma once

#include "cpu/kernels/simd.h"
#include "cpu/kernels/table.h"

namespace agentkv::cpu {
namespace {

// Stands in for a position without a cell.
alignas(64) const float kZeroRow[kMaxHeadDim + kLanes] = {};

// The addresses of the rows of a block's positions (absent ones read as zeros), and of the block to prefetch.
struct BlockRows {
  const std::byte *k[kBlock], *v[kBlock], *next_k[kBlock], *next_v[kBlock];

  explicit AGENTKV_INLINE BlockRows(const BlockArgs& a) {
    const std::int32_t* next_cells = a.next_cells != nullptr ? a.next_cells : a.cells;
    addresses(a.k, a.k_row_bytes, a.cells, k);
    addresses(a.v, a.v_row_bytes, a.cells, v);
    addresses(a.k, a.k_row_bytes, next_cells, next_k);
    addresses(a.v, a.v_row_bytes, next_cells, next_v);
  }

 private:
  static AGENTKV_INLINE void addresses(const std::byte* base, std::size_t row_bytes, const std::int32_t* cells,
                                       const std::byte** rows) {
    const auto* zero = reinterpret_cast<const std::byte*>(kZeroRow);
    for (int p = 0; p < kBlock; ++p) {
      rows[p] = cells[p] < 0 ? zero : base + static_cast<std::size_t>(cells[p]) * row_bytes;
    }
  }
};

struct Fp32Row {
  // kWidth floats from element d on; may read, and never use, elements past the row's end.
  static AGENTKV_INLINE Vec load(const std::byte* row, int d) { return load_as<Vec>(row + 4 * d); }
  static AGENTKV_INLINE void store_part(Vec x, std::byte* row, int d) { store(row + 4 * d, x); }
  static constexpr int kElement = 4;
};

struct Bf16Row {
  static AGENTKV_INLINE Vec load(const std::byte* row, int d) {
    return (Vec)(from_halves(load_as<HVec>(row + 2 * d)) << 16);
  }
  // Round to nearest even; NaN stays NaN.
  static AGENTKV_INLINE void store_part(Vec x, std::byte* row, int d) {
    const UVec u = (UVec)x;
    const UVec rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    const UVec nan = (u >> 16) | 0x40;
    const UVec mask = (UVec)(x != x);
    store(row + 2 * d, __builtin_convertvector((nan & mask) | (rounded & ~mask), HVec));
  }
  static constexpr int kElement = 2;
};

struct Fp16Row {
  static AGENTKV_INLINE Vec load(const std::byte* row, int d) {
#if defined(__AVX512F__)
    return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 2 * d)));
#elif defined(__AVX2__) && defined(__FMA__)
    return (Vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * d)));
#elif defined(__aarch64__)
    return (Vec)vcvt_f32_f16((float16x4_t)load_as<HVec>(row + 2 * d));
#else
    // Shifting the exponent in place is off by a factor 2^112, subnormals included; the multiplication is exact.
    // Infinity and NaN are not stored by a pool, save NaN, which must stay one.
    const UVec h = from_halves(load_as<HVec>(row + 2 * d));
    const UVec magnitude = h & 0x7fff;
    const UVec special = (UVec)(magnitude >= 0x7c00) & 0x7f800000;
    const Vec x = (Vec)(magnitude << 13) * splat(0x1p112f);
    return (Vec)((UVec)x | special | ((h & 0x8000) << 16));
#endif
  }
  // Round to nearest even; what lies beyond +-65504 saturates; NaN stays NaN.
  static AGENTKV_INLINE void store_part(Vec x, std::byte* row, int d) {
    const Vec top = splat(65504.0f);
    x = select(x > top, top, select(x < -top, -top, x));
#if defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + 2 * d), _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__) && defined(__FMA__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(row + 2 * d), _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
    store(row + 2 * d, (HVec)vcvt_f16_f32((float32x4_t)x));
#else
    const UVec sign = ((UVec)x >> 16) & 0x8000;
    const UVec u = (UVec)x & 0x7fffffff;
    const UVec normal = (u + 0xfff + ((u >> 13) & 1) - 0x38000000) >> 13;
    // Subnormal: adding 0.5 makes the float unit round at 2^-24, the step of fp16 subnormals.
    const UVec subnormal = (UVec)((Vec)u + splat(0.5f)) - 0x3f000000;
    const UVec small = (UVec)(u < 0x38800000);
    const UVec nan = (UVec)(x != x);
    const UVec h = ((subnormal & small) | (normal & ~small & ~nan) | (nan & 0x7e00)) | sign;
    store(row + 2 * d, __builtin_convertvector(h, HVec));
#endif
  }
  static constexpr int kElement = 2;
};

template <class Row>
void store_row(const float* src, std::byte* dst, float*, int n) {
  constexpr int step = kWidth < 8 ? kWidth : 8;  // rows are multiples of 8 long
  int d = 0;
  for (; d + kWidth <= n; d += kWidth) Row::store_part(load(src + d), dst, d);
  if (d == n) return;
  alignas(64) float padded[kWidth] = {};
  alignas(64) std::byte part[4 * kWidth];
  __builtin_memcpy(padded, src + d, step * sizeof(float));
  Row::store_part(load(padded), part, 0);
  __builtin_memcpy(dst + Row::kElement * d, part, static_cast<std::size_t>(step) * Row::kElement);
}

template <class Row>
void load_row(const std::byte* src, float, float* dst, int n) {
  for (int d = 0; d < n; d += kWidth) store(dst + d, Row::load(src, d));
}

}  // namespace
}  // namespace agentkv::cpu
