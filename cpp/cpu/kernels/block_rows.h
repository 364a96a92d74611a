// A row of floats as int8 codes, each block of it with a scale of its own: its largest magnitude is 127 steps. All from
// the block alone, in operations that every instruction set rounds alike.
#pragma once

#include <bit>

#include "cpu/kernels/block_codes.h"
#include "cpu/kernels/row_codes.h"

namespace agentkv::cpu {
namespace {

constexpr std::int32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;

// The same address, after what was stored there: a compiler that knows what that was would take it apart lane by lane.
AGENTKV_INLINE const std::int8_t* stored(const std::int8_t* at) {
  __asm__ volatile("" : "+r"(at) : : "memory");
  return at;
}

// The bits of the largest magnitude: at least those of infinity where a value is not finite.
template <int kBlock>
AGENTKV_INLINE std::int32_t largest_magnitude(const float* x) {
  IVec most = {};
#pragma GCC unroll 8
  for (int i = 0; i < kBlock; i += kWidth) {
    const IVec magnitude = load_as<IVec>(x + i) & kMagnitude;
    most = magnitude > most ? magnitude : most;
  }
  return most_of(most);
}

// A block's scale, and what its numbers are multiplied by: 0 where none of them counts.
struct BlockScale {
  float scale, inverse;
};

template <class F>
AGENTKV_INLINE BlockScale block_scale(const float* x) {
  const std::int32_t magnitude = largest_magnitude<F::kInputs>(x);
  const float largest = std::bit_cast<float>(magnitude), scale = largest * (1.0f / 127.0f);
  if (magnitude >= kInfinity) return {__builtin_nanf(""), 0.0f};
  return scale < kNoScale ? BlockScale{0.0f, 0.0f} : BlockScale{scale, 127.0f / largest};
}

// Codes of a group of inputs, and their sum. No magnitude is above 127: none needs to be cut.
template <class F>
AGENTKV_INLINE std::int32_t write_group(const float* x, float inverse, std::int8_t* codes) {
  if (inverse == 0.0f) {
    __builtin_memset(codes, 0, F::kGroup);
    return 0;
  }
  IVec sum = {};
#pragma GCC unroll 8
  for (int k = 0; k < F::kGroup; k += kWidth) {
    const IVec code = nearest(load(x + k) * splat(inverse));
    store_low_bytes(codes + k, code);
    sum += code;
  }
  return total_of(sum);
}

// Rows that lie together are written block by block: row by row, each line of memory would be met again and again.
template <class F>
void quantize_blocks(const BlockRowsArgs& a) {
  constexpr std::size_t kGroups = PanelLayout<F>::kGroups;
  const ActivationCodes& out = a.out;
  const RowPlace place(out, a.row);
  const std::size_t rows = place.rows;
  std::int16_t* pairs = out.sums + place.before * out.sum_stride;
  for (auto b = static_cast<std::size_t>(a.begin); b < static_cast<std::size_t>(a.end); ++b) {
    std::int32_t* bases = out.bases + place.before * out.base_stride + b * kGroups * rows;
    const std::size_t at = place.before * out.scale_stride + b * rows;
    for (std::size_t r = 0; r < rows; ++r) {
      const float* x = a.x + (place.before + r) * a.x_stride + b * F::kInputs;
      std::int8_t* codes = out.codes + place.before * out.stride + b * F::kInputs * rows + 4 * r;
      const BlockScale scale = block_scale<F>(x);
      std::int32_t total = 0;
      for (std::size_t g = 0; g < kGroups; ++g, x += F::kGroup, codes += F::kGroup * rows) {
        alignas(16) std::int8_t written[F::kGroup];
        const std::int32_t sum = write_group<F>(x, scale.inverse, written);
        const std::int8_t* from = stored(written);
#pragma GCC unroll 8
        for (std::size_t k = 0; k < F::kGroup; k += 4) __builtin_memcpy(codes + k * rows, from + k, 4);
        if constexpr (F::kHasMinimum && kGroups > 1) {
          const std::size_t all = b * kGroups + g;
          pairs[2 * (all / 2 * rows + r) + all % 2] = static_cast<std::int16_t>(sum);
        }
        if constexpr (Bytes<F>::kOffset != 0) bases[g * rows + r] = -Bytes<F>::kOffset * sum;
        total += sum;
      }
      out.scales[at + r] = scale.scale;
      out.offsets[at + r] = static_cast<float>(total) * scale.scale;
    }
  }
}

}  // namespace
}  // namespace agentkv::cpu
