// A row of floats as int8 codes, each block of it with a scale of its own: its largest magnitude is 127 steps. All from
// the block alone, in operations that every instruction set rounds alike.
#pragma once

#include "cpu/kernels/block_table.h"
#include "cpu/kernels/row_codes.h"

namespace agentkv::cpu {
namespace {

AGENTKV_INLINE float largest_magnitude(const float* x, int n, bool& finite) {
  Vec most = {}, bad = {};
  for (int i = 0; i < n; i += kWidth) {
    const Vec v = load(x + i);
    most = larger(larger(v, -v), most);
    bad += v - v;  // NaN once a value is not finite
  }
  float largest = 0.0f, bad_sum = 0.0f;
  for (int i = 0; i < kWidth; ++i) {
    largest = most[i] > largest ? most[i] : largest;
    bad_sum += bad[i];
  }
  finite = bad_sum == 0.0f;
  return largest;
}

void quantize_block_row(const float* x, int inputs, int block, int group, const ActivationCodes& out, int row) {
  const auto r = static_cast<std::size_t>(row);
  std::int8_t* codes = out.codes + r * out.stride;
  std::int16_t* sums = out.sums + r * out.sum_stride;
  float *scales = out.scales + r * out.scale_stride, *offsets = out.offsets + r * out.scale_stride;
  for (int b = 0; b < inputs / block; ++b, x += block, codes += block, sums += block / group) {
    bool finite = false;
    const float largest = largest_magnitude(x, block, finite);
    const float scale = largest * (1.0f / 127.0f);
    const bool codable = finite && scale >= kNoScale;
    const Vec inverse = splat(codable ? 127.0f / largest : 0.0f);
    std::int32_t total = 0;
    for (int g = 0; g < block / group; ++g) {
      IVec sum = {};
      for (int i = g * group; i < (g + 1) * group; i += kWidth) {
        if (codable) {
          sum += write_codes(load(x + i), inverse, IVec{}, codes + i);
        } else {
          __builtin_memset(codes + i, 0, kWidth);
        }
      }
      const std::int32_t of_group = total_of(sum);
      sums[g] = static_cast<std::int16_t>(of_group);
      total += of_group;
    }
    scales[b] = codable ? scale : finite ? 0.0f : __builtin_nanf("");
    offsets[b] = static_cast<float>(total) * scales[b];
  }
}

}  // namespace
}  // namespace agentkv::cpu
