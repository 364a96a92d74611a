// Compiled once per instruction set, with AGENTKV_TABLE naming its table; see kernels.cpp.
#include "cpu/kernels/adapter_table.h"
#include "cpu/kernels/simd.h"

namespace agentkv::cpu {
namespace {

constexpr int kVecs = kAdapterLanes / kWidth;
constexpr int kRanks = kWidth == 16 ? kAdapterRanks : 1;  // that the registers hold the sums of, for all rows

AGENTKV_INLINE float sum_in_halves(const Vec (&lanes)[kVecs]) {
  alignas(64) float all[kAdapterLanes];
#pragma GCC unroll 4
  for (int v = 0; v < kVecs; ++v) store(all + v * kWidth, lanes[v]);
  for (int half = kAdapterLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) all[l] += all[l + half];
  }
  return all[0];
}

// Ranks [k, k + kRanks) of kRows rows.
template <int kRows>
void reduce(const AdapterArgs& a, int k) {
  const float *x[kRows], *w[kRanks];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) x[r] = a.x + static_cast<std::size_t>(a.rows[r]) * a.x_stride;
#pragma GCC unroll 4
  for (int j = 0; j < kRanks; ++j) w[j] = a.a + static_cast<std::size_t>(k + j) * static_cast<std::size_t>(a.padded);
  Vec sums[kRows][kRanks][kVecs] = {};
  const auto take = [&](const float* const(&from)[kRows], int shift, int i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
#pragma GCC unroll 4
      for (int j = 0; j < kRanks; ++j) {
        const Vec weight = load(w[j] + i + v * kWidth);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r)
          sums[r][j][v] = fma(load(from[r] + i - shift + v * kWidth), weight, sums[r][j][v]);
      }
    }
  };
  const int whole = a.inputs / kAdapterLanes * kAdapterLanes;
  for (int i = 0; i < whole; i += kAdapterLanes) take(x, 0, i);
  if (whole < a.inputs) {  // past the end of a row of x there may be anything
    alignas(64) float ends[kRows][kAdapterLanes] = {};
    const float* from[kRows];
    for (int r = 0; r < kRows; ++r) {
      for (int i = whole; i < a.inputs; ++i) ends[r][i - whole] = x[r][i];
      from[r] = ends[r];
    }
    take(from, whole, whole);
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kRanks; ++j) a.h[r * a.ranks + k + j] = sum_in_halves(sums[r][j]);
  }
}

// Outputs of one part.
template <int kRows>
void expand(const AdapterArgs& a, const AdapterPart& part) {
  const float* b = a.b + part.b;
  for (int first = 0; first < part.outputs; first += kAdapterLanes) {
    Vec sums[kRows][kVecs] = {};
    for (int k = 0; k < part.rank; ++k, b += kAdapterLanes) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        const Vec weight = load(b + v * kWidth);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          sums[r][v] = fma(splat(a.h[r * a.ranks + part.rank_begin + k]), weight, sums[r][v]);
        }
      }
    }
    const int n = part.outputs - first < kAdapterLanes ? part.outputs - first : kAdapterLanes;
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      float* y = a.y + static_cast<std::size_t>(a.rows[r]) * a.y_stride + part.first + first;
      if (n == kAdapterLanes) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) store(y + v * kWidth, load(y + v * kWidth) + sums[r][v]);
        continue;
      }
      alignas(64) float out[kAdapterLanes];
      for (int v = 0; v < kVecs; ++v) store(out + v * kWidth, sums[r][v]);
      for (int i = 0; i < n; ++i) y[i] += out[i];
    }
  }
}

template <int kRows>
void add_rows(const AdapterArgs& a) {
  for (int k = 0; k < a.ranks; k += kRanks) reduce<kRows>(a, k);
  for (int p = 0; p < a.n_parts; ++p) expand<kRows>(a, a.parts[p]);
}

void add(const AdapterArgs& a) {
  static constexpr void (*kernels[kAdapterRows])(const AdapterArgs&) = {add_rows<1>, add_rows<2>, add_rows<3>,
                                                                        add_rows<4>};
  kernels[a.n_rows - 1](a);
}

}  // namespace

extern const AdapterKernelTable AGENTKV_TABLE;
const AdapterKernelTable AGENTKV_TABLE = {add};

}  // namespace agentkv::cpu
