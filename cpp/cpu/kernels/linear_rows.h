// A row of floats as int8 codes around a zero of its own, as torchao's 8da4w and XNNPACK's qd8 have it: the range from
// its smallest to its largest value, 0 included, is cut into 255 steps. All from the row alone, in operations that
// every instruction set rounds alike.
#pragma once

#include "cpu/kernels/linear_table.h"
#include "cpu/kernels/row_codes.h"

namespace agentkv::cpu {
namespace {

struct RowRange {
  float low, high;
  bool finite;
};

AGENTKV_INLINE RowRange range_of(const float* x, int n) {
  Vec low = {}, negated = {}, bad = {};
  int i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const Vec v = load(x + i);
    low = larger(-v, low);
    negated = larger(v, negated);
    bad += v - v;  // NaN once a value is not finite
  }
  RowRange range = {0.0f, 0.0f, true};
  float bad_sum = 0.0f;
  for (int j = 0; j < kWidth; ++j) {
    range.low = -low[j] < range.low ? -low[j] : range.low;
    range.high = negated[j] > range.high ? negated[j] : range.high;
    bad_sum += bad[j];
  }
  for (; i < n; ++i) {
    range.low = x[i] < range.low ? x[i] : range.low;
    range.high = x[i] > range.high ? x[i] : range.high;
    bad_sum += x[i] - x[i];
  }
  range.finite = bad_sum == 0.0f;
  return range;
}

void quantize_row(const float* x, int inputs, const RowCodes& out, int row) {
  std::int8_t* codes = out.codes + static_cast<std::size_t>(row) * out.stride;
  std::int32_t* sums = out.sums + static_cast<std::size_t>(row) * out.sum_stride;
  const int padded = (inputs + kInputs - 1) / kInputs * kInputs;
  const RowRange range = range_of(x, inputs);
  // The difference itself could overflow.
  const float scale = range.high * (1.0f / 255.0f) - range.low * (1.0f / 255.0f);
  out.totals[row] = 0;
  out.zeros[row] = 0.0f;
  if (!range.finite || scale < kNoScale) {
    out.scales[row] = range.finite ? 0.0f : __builtin_nanf("");
    __builtin_memset(codes, 0, static_cast<std::size_t>(padded));
    for (int i = 0; i < padded / kSums; ++i) sums[i] = 0;
    return;
  }
  const Vec inverse = splat(1.0f / scale);
  const IVec zero = clamped(-128 - nearest(splat(range.low) * inverse));
  out.scales[row] = scale;
  out.zeros[row] = static_cast<float>(zero[0]);
  std::int32_t total = 0;
  for (int i = 0; i < padded; i += kSums) {
    IVec sum = {};
    if (i + kSums <= inputs) {
      for (int j = i; j < i + kSums; j += kWidth) sum += write_codes(load(x + j), inverse, zero, codes + j);
    } else {
      // What is past the end has the code 0, so it is made apart: a value of 0 would have the code of zero.
      __builtin_memset(codes + i, 0, kSums);
      for (int j = i; j < inputs; ++j) {
        std::int8_t one[kWidth];
        sum[0] += write_codes(splat(x[j]), inverse, zero, one)[0];
        codes[j] = one[0];
      }
    }
    sums[i / kSums] = total_of(sum);
    total += sums[i / kSums];
  }
  out.totals[row] = total;
}

}  // namespace
}  // namespace agentkv::cpu
