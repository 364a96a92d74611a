// Few query rows over codes: K and V are multiplied as integers as they stream by, and read once for all rows.
#pragma once

#include "cpu/kernels/code_softmax.h"
#include "cpu/kernels/rows.h"

namespace agentkv::cpu {
namespace {

AGENTKV_INLINE int n_lanes(int dim) { return (dim + kPack * kWidth - 1) / (kPack * kWidth) * kWidth; }

// Products of kWidth positions with N rows, one row of K after another.
template <class Row, int N>
AGENTKV_INLINE void stream_products(const std::byte* const* k_rows, const std::byte* const* next,
                                    const CodeQuery* const* q, int dim, std::int32_t* products) {
  IVec parts[N][kWidth];
  const int lanes = n_lanes(dim);
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) {
    IVec acc[N] = {};
    for (int lane = 0; lane < lanes; lane += kWidth) {
      const IVec k = load_lanes<Row>(k_rows[i], lane);
#pragma GCC unroll 4
      for (int r = 0; r < N; ++r) acc[r] = dot_codes(acc[r], k, load_as<IVec>(q[r]->lanes + lane));
    }
    for (int d = 0; d < dim; d += 64 * Row::kElements) __builtin_prefetch(next[i] + d / Row::kElements, 0, 2);
#pragma GCC unroll 4
    for (int r = 0; r < N; ++r) parts[r][i] = acc[r];
  }
#pragma GCC unroll 4
  for (int r = 0; r < N; ++r) store(products + r * kBlock, sums_of(parts[r]) + q[r]->bias);
}

// sum[d] += weights[p] * V[p][d] for 16 * kParts dims and N rows, two positions at a time.
template <class Row, int N, int kParts>
AGENTKV_INLINE void stream_code_sums(const std::byte* const* v_rows, const std::byte* const* next,
                                     const std::int16_t* weights, const Weighed* weighed, float* const* state, int d,
                                     int begin, int end) {
  constexpr int kVecs = 16 / kWidth;
  IVec acc[N][kParts][kVecs] = {};
  for (int p = begin; p < end; p += 2) {
    __builtin_prefetch(next[p] + d / Row::kElements, 0, 2);
    __builtin_prefetch(next[p + 1] + d / Row::kElements, 0, 2);
    IVec v[kParts][kVecs];
#pragma GCC unroll 4
    for (int c = 0; c < kParts; ++c) load_pairs<Row>(v_rows[p], v_rows[p + 1], d + 16 * c, v[c]);
#pragma GCC unroll 4
    for (int r = 0; r < N; ++r) {
      const IVec w = splat_int(load_as<std::int32_t>(weights + r * kBlock + p));
#pragma GCC unroll 4
      for (int c = 0; c < kParts; ++c) {
#pragma GCC unroll 4
        for (int i = 0; i < kVecs; ++i) acc[r][c][i] = dot_pairs(acc[r][c][i], v[c][i], w);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < N; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kParts; ++c) {
#pragma GCC unroll 4
      for (int i = 0; i < kVecs; ++i) add_products(state[r] + d + 16 * c + i * kWidth, acc[r][c][i], weighed[r]);
    }
  }
}

template <class KeyRow, class ValueRow, int N>
void stream_code_block(const BlockArgs& a) {
  const int padded = padded_dim(a.v_dim);
  std::uint64_t seen = 0;
  for (int r = 0; r < N; ++r) seen |= a.visible[r];
  const int begin = __builtin_ctzll(seen), end = 64 - __builtin_clzll(seen);
  const BlockRows rows(a);
  const CodeQuery* q[N];
  for (int r = 0; r < N; ++r) q[r] = &CodeQuery::of(a.q[r]);
  alignas(64) float scores[N * kBlock], k_scales[kBlock], v_scales[kBlock];
  alignas(64) std::int16_t weights[N * kBlock];
  gather_scales(a.k_scales, a.cells, k_scales);
  gather_scales(a.v_scales, a.cells, v_scales);
  for (int p = 0; p < kBlock; p += kWidth) {
    if (p + kWidth > begin && p < end) {
      stream_products<KeyRow, N>(rows.k + p, rows.next_k + p, q, a.k_dim, reinterpret_cast<std::int32_t*>(scores) + p);
    } else {
      for (int r = 0; r < N; ++r) store(scores + r * kBlock + p, Vec{});
    }
  }
  Weighed weighed[N];
  for (int r = 0; r < N; ++r) {
    weighed[r] = weigh_block(a, r, k_scales, v_scales, scores + r * kBlock, weights + r * kBlock);
  }
  constexpr int kParts = kWidth == 4 ? 1 : (N > 2 ? 1 : 2) * (kWidth == 16 ? 2 : 1);
  int d = 0;
  for (; d + kParts * 16 <= padded; d += kParts * 16) {
    stream_code_sums<ValueRow, N, kParts>(rows.v, rows.next_v, weights, weighed, a.state, d, begin & ~1, end);
  }
  for (; d < padded; d += 16) {
    stream_code_sums<ValueRow, N, 1>(rows.v, rows.next_v, weights, weighed, a.state, d, begin & ~1, end);
  }
}

}  // namespace
}  // namespace agentkv::cpu
