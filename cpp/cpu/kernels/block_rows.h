// A row of floats as int8 codes, each block of it with a scale of its own: its largest magnitude is 127 steps. All from
// the block alone, in operations that every instruction set rounds alike.
#pragma once

#include <bit>

#include "cpu/kernels/block_table.h"
#include "cpu/kernels/row_codes.h"

namespace agentkv::cpu {
namespace {

constexpr std::int32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;

// The bits of the largest magnitude: at least those of infinity where a value is not finite.
AGENTKV_INLINE std::int32_t largest_magnitude(const float* x, int n) {
  IVec most = {};
  for (int i = 0; i < n; i += kWidth) {
    const IVec magnitude = load_as<IVec>(x + i) & kMagnitude;
    most = magnitude > most ? magnitude : most;
  }
  return most_of(most);
}

void quantize_block_row(const float* x, int inputs, int block, int group, const ActivationCodes& out, int row) {
  const RowPlace place(out, row);
  std::int8_t* codes = out.codes + place.before * out.stride + 4 * place.row;
  std::int16_t* sums = out.sums + place.before * out.sum_stride + 2 * place.row;
  std::int32_t* bases = out.bases + place.before * out.base_stride + place.row;
  float* scales = out.scales + place.before * out.scale_stride + place.row;
  float* offsets = out.offsets + place.before * out.scale_stride + place.row;
  int groups = 0;
  for (int b = 0; b < inputs / block; ++b, x += block, scales += place.rows, offsets += place.rows) {
    const std::int32_t magnitude = largest_magnitude(x, block);
    const bool finite = magnitude < kInfinity;
    const float largest = std::bit_cast<float>(magnitude);
    const float scale = largest * (1.0f / 127.0f);
    const bool codable = finite && scale >= kNoScale;
    const Vec inverse = splat(codable ? 127.0f / largest : 0.0f);
    std::int32_t total = 0;
    for (int g = 0; g < block / group; ++g, ++groups) {
      IVec sum = {};
      for (int i = g * group; i < (g + 1) * group; i += kWidth, codes += kWidth * place.rows) {
        alignas(16) std::int8_t some[kWidth] = {};
        if (codable) sum += write_codes(load(x + i), inverse, IVec{}, some);
        for (std::size_t k = 0; k < kWidth; k += 4) __builtin_memcpy(codes + k * place.rows, some + k, 4);
      }
      const std::int32_t of_group = total_of(sum);
      const auto pair = static_cast<std::size_t>(groups / 2), odd = static_cast<std::size_t>(groups % 2);
      sums[2 * place.rows * pair + odd] = static_cast<std::int16_t>(of_group);
      bases[static_cast<std::size_t>(groups) * place.rows] = -out.offset * of_group;
      total += of_group;
    }
    *scales = codable ? scale : finite ? 0.0f : __builtin_nanf("");
    *offsets = static_cast<float>(total) * *scales;
  }
}

}  // namespace
}  // namespace agentkv::cpu
