// Codes of blocks, from their planes to bytes that are multiplied, four inputs of an output to a 32-bit lane.
#pragma once

#include "cpu/blocks/panel_layout.h"
#include "cpu/kernels/block_table.h"
#include "cpu/kernels/linear_dot.h"
#include "cpu/kernels/rows.h"

namespace agentkv::cpu {
namespace {

// a * b + c, rounded once on every machine.
AGENTKV_INLINE Vec fused(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__)) || defined(__aarch64__)
  return fma(a, b, c);
#else
  Vec out;
  for (int i = 0; i < kWidth; ++i) out[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return out;
#endif
}

// Bytes that products take: codes without a sign, or values of a table plus what makes them so.
template <class F>
struct Bytes {
  static constexpr bool kIsTable = F::kValues != nullptr;
  // Of a table's values: the least is -127, or -12.
  static constexpr int kTableOffset = F::kType == BlockType::MXFP4 ? 12 : 128;
  static constexpr bool kIsWide = F::kBits == 8 || (kIsTable && kTableOffset == 128);  // more than 6 bits
#if defined(__SSE2__) || defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  static constexpr bool kSigned = false;
#else
  static constexpr bool kSigned = kIsWide;  // bytes with a sign are all that the machine multiplies
#endif
  // What every byte is too large by.
  static constexpr int kOffset = (kIsTable ? kTableOffset : F::kOffset) - (kSigned ? 128 : 0);
};

struct alignas(16) ByteTable {
  std::uint8_t at[16];
};
template <class F>
constexpr ByteTable byte_table() {
  ByteTable table{};
  for (int i = 0; i < 16; ++i) table.at[i] = static_cast<std::uint8_t>(F::kValues[i] + Bytes<F>::kTableOffset);
  return table;
}
template <class F>
inline constexpr ByteTable kByteTable = byte_table<F>();

AGENTKV_INLINE IVec look_up(const ByteTable& table, IVec nibbles) {
#if defined(__AVX512BW__)
  const __m512i all = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(table.at)));
  return (IVec)_mm512_shuffle_epi8(all, (__m512i)nibbles);
#elif defined(__AVX2__) && defined(__FMA__)
  const __m256i all = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table.at)));
  return (IVec)_mm256_shuffle_epi8(all, (__m256i)nibbles);
#elif defined(__SSSE3__)
  return (IVec)_mm_shuffle_epi8(_mm_load_si128(reinterpret_cast<const __m128i*>(table.at)), (__m128i)nibbles);
#elif defined(__aarch64__)
  return (IVec)vqtbl1q_u8(vld1q_u8(table.at), (uint8x16_t)nibbles);
#else
  std::uint8_t bytes[4 * kWidth];
  store(bytes, nibbles);
  for (std::uint8_t& byte : bytes) byte = table.at[byte];
  return load_as<IVec>(bytes);
#endif
}

// Shifts to the left by a number that may be negative.
template <int kBy>
AGENTKV_INLINE UVec shifted(UVec v) {
  if constexpr (kBy >= 0) {
    return v << kBy;
  } else {
    return v >> -kBy;
  }
}

// Quad kQuad of a chunk, as Bytes<F> has them; `chunk` begins at the vector's first output.
template <class F, int kQuad>
AGENTKV_INLINE IVec quad_bytes(const std::byte* chunk) {
  using Layout = PanelLayout<F>;
  const auto plane = [&](int bits) { return load_as<UVec>(chunk + kQuad * bits / 8 * 64); };
  IVec bytes;
  if constexpr (F::kBits == 8) {
    bytes = (IVec)plane(8);
  } else {
    constexpr int kLow = Layout::kLowBits, kHigh = Layout::kHighBits;
    constexpr std::uint32_t kLowMask = kLow == 4 ? 0x0f0f0f0f : 0x03030303;
    bytes = (IVec)(plane(kLow) >> (kQuad * kLow % 8) & kLowMask);
    if constexpr (kHigh > 0) {
      constexpr std::uint32_t kHighMask = ((1u << kHigh) - 1) * 0x01010101u << kLow;
      const auto high = load_as<UVec>(chunk + Layout::kHighAt + kQuad * kHigh / 8 * 64);
      bytes |= (IVec)(shifted<kLow - kQuad * kHigh % 8>(high) & kHighMask);
    }
  }
  if constexpr (Bytes<F>::kIsTable) bytes = look_up(kByteTable<F>, bytes);
  if constexpr (Bytes<F>::kSigned) bytes ^= splat_int(static_cast<std::int32_t>(0x80808080));
  return bytes;
}

// acc + four products per lane.
template <class F>
AGENTKV_INLINE IVec dot_quads(IVec acc, IVec w, IVec x) {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  return dot_nibbles(acc, w, x);
#elif defined(__SSE2__)
  if constexpr (Bytes<F>::kIsWide) {
    typedef std::int16_t Shorts __attribute__((vector_size(4 * kWidth)));
    typedef std::uint16_t UShorts __attribute__((vector_size(4 * kWidth)));
    const auto even = (IVec)((UShorts)w & 0x00ff), odd = (IVec)((UShorts)w >> 8);
    const auto even_x = (IVec)((Shorts)x << 8 >> 8), odd_x = (IVec)((Shorts)x >> 8);
    return add_pairs(add_pairs(acc, even, even_x), odd, odd_x);
  } else {
    return acc + nibble_sums(dot_nibbles(IVec{}, w, x));  // two products of 63 * 127 fit into 16 bits
  }
#else
  return dot_nibbles(acc, w, x);
#endif
}

// The same with four codes for all lanes, the four of that number from `codes` on.
template <class F, int kFour>
AGENTKV_INLINE IVec dot_quads_at(IVec acc, IVec w, const std::int8_t* codes) {
#if defined(__AVX512VNNI__)
  codes += 4 * kFour;
  __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*reinterpret_cast<const std::int32_t*>(codes)));
  return acc;
#elif defined(__ARM_FEATURE_DOTPROD)
  return dot_nibbles_at<kFour>(acc, w, codes);
#else
  return dot_quads<F>(acc, w, codes_at(codes + 4 * kFour));
#endif
}

// acc + two products of 16-bit integers per lane.
AGENTKV_INLINE IVec dot_shorts(IVec acc, IVec a, IVec b) {
#if defined(__AVX512VNNI__)
  return (IVec)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
#elif defined(__SSE2__) && !defined(__AVXVNNI__)
  return add_pairs(acc, a, b);
#elif defined(__AVXVNNI__)
  return (IVec)_mm256_dpwssd_avx_epi32((__m256i)acc, (__m256i)a, (__m256i)b);
#elif defined(__aarch64__)
  return acc + pair_products(a, b);
#else
  return acc + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

// kWidth scales of a block, and kWidth of its groups' scales.
template <class F>
AGENTKV_INLINE Vec block_scales(const std::byte* at) {
  return F::kScaleKind == ScaleKind::Bfloat16 ? Bf16Row::load(at, 0) : Fp16Row::load(at, 0);
}
AGENTKV_INLINE IVec group_scales(const std::byte* at) { return load_bytes_as_lanes(at); }
// Two minima to a lane, of neighbouring groups.
AGENTKV_INLINE IVec pair_minima(const std::byte* at) {
  typedef std::uint8_t Bytes2 __attribute__((vector_size(2 * kWidth)));
  typedef std::uint16_t Shorts2 __attribute__((vector_size(4 * kWidth)));
  return (IVec) __builtin_convertvector(load_as<Bytes2>(at), Shorts2);
}

// Sums of the groups of block b, of kRows rows that lie together: of each row beside those of its neighbours.
template <class F, int kRows>
AGENTKV_INLINE const std::int16_t* sums_of(const std::int16_t* sums, int b) {
  constexpr int kGroups = PanelLayout<F>::kGroups;
  return kGroups > 1 ? sums + b * kGroups * kRows : sums + b / 2 * 2 * kRows + b % 2;
}

// J of a row with kWidth outputs: `minima` at the first of them, `sums` of the block's groups; kRows lie together.
template <class F, int kRows>
AGENTKV_INLINE IVec minimum_products(const std::byte* minima, const std::int16_t* sums) {
  IVec total = {};
#pragma GCC unroll 8
  for (int pair = 0; pair < PanelLayout<F>::kGroups / 2; ++pair) {
    const IVec both = splat_int(load_as<std::int32_t>(sums + 2 * kRows * pair));
    total = dot_shorts(total, pair_minima(minima + pair * 2 * kPanel), both);
  }
  return total;
}

}  // namespace
}  // namespace agentkv::cpu
