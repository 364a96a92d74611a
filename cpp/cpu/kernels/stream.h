// Few query rows: K and V are converted as they stream by, and read once for all rows.
#pragma once

#include "cpu/kernels/rows.h"
#include "cpu/kernels/scores.h"

namespace agentkv::cpu {
namespace {

// Scores of kWidth positions for N rows: lanes are positions, one fma chain over d each.
template <class Row, int N>
AGENTKV_INLINE void stream_scores(const std::byte* const* k_rows, const std::byte* const* next, const float* const* q,
                                  int dim, float* scores) {
  Vec acc[N] = {};
  for (int d = 0; d < dim; d += kWidth) {
    Vec k[kWidth];
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) k[i] = Row::load(k_rows[i], d);
    transpose(k);
    if (d * Row::kElement % 64 == 0) {
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) __builtin_prefetch(next[i] + d * Row::kElement, 0, 2);
    }
    if (kWidth <= 8 || d + kWidth <= dim) {
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) {
#pragma GCC unroll 4
        for (int r = 0; r < N; ++r) acc[r] = fma(splat(q[r][d + i]), k[i], acc[r]);
      }
    } else {
#pragma GCC unroll 8
      for (int i = 0; i < kWidth / 2; ++i) {
#pragma GCC unroll 4
        for (int r = 0; r < N; ++r) acc[r] = fma(splat(q[r][d + i]), k[i], acc[r]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < N; ++r) store(scores + r * kBlock, acc[r]);
}

// sum[d] += weights[p] * V[p][d] over p in order, for kVecs vectors of dims and N rows.
template <class Row, int N, int kVecs>
AGENTKV_INLINE void stream_sums(const std::byte* const* v_rows, const std::byte* const* next, const float* weights,
                                const float* fade, float* const* state, int d, int begin, int end) {
  Vec acc[N][kVecs];
#pragma GCC unroll 4
  for (int r = 0; r < N; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kVecs; ++c) acc[r][c] = load(state[r] + d + c * kWidth) * splat(fade[r]);
  }
  for (int p = begin; p < end; ++p) {
#pragma GCC unroll 8
    for (int i = 0; i < kVecs * kWidth * Row::kElement; i += 64)
      __builtin_prefetch(next[p] + d * Row::kElement + i, 0, 2);
    Vec v[kVecs];
#pragma GCC unroll 8
    for (int c = 0; c < kVecs; ++c) v[c] = Row::load(v_rows[p], d + c * kWidth);
#pragma GCC unroll 4
    for (int r = 0; r < N; ++r) {
      const Vec w = splat(weights[r * kBlock + p]);
#pragma GCC unroll 8
      for (int c = 0; c < kVecs; ++c) acc[r][c] = fma(w, v[c], acc[r][c]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < N; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kVecs; ++c) store(state[r] + d + c * kWidth, acc[r][c]);
  }
}

template <class Row, int N>
void stream_block(const BlockArgs& a) {
  const int padded = padded_dim(a.v_dim);
  std::uint64_t seen = 0;
  for (int r = 0; r < N; ++r) seen |= a.visible[r];
  const int begin = __builtin_ctzll(seen), end = 64 - __builtin_clzll(seen);
  const BlockRows rows(a);
  alignas(64) float scores[N * kBlock];
  for (int p = 0; p < kBlock; p += kWidth) {
    if (p + kWidth > begin && p < end) {
      stream_scores<Row, N>(rows.k + p, rows.next_k + p, a.q, a.k_dim, scores + p);
    } else {
      for (int r = 0; r < N; ++r) store(scores + r * kBlock + p, Vec{});
    }
  }
  float fade[N];
  for (int r = 0; r < N; ++r) {
    bend_scores(a, r, scores + r * kBlock);
    fade[r] = softmax_block(scores + r * kBlock, a.visible[r], a.state[r], padded);
  }

  constexpr int kVecs = kWidth == 16 ? (N > 2 ? 4 : 8) : (N > 2 ? 2 : 4);
  int d = 0;
  for (; d + kVecs * kWidth <= padded; d += kVecs * kWidth) {
    stream_sums<Row, N, kVecs>(rows.v, rows.next_v, scores, fade, a.state, d, begin, end);
  }
  for (; d < padded; d += kWidth) stream_sums<Row, N, 1>(rows.v, rows.next_v, scores, fade, a.state, d, begin, end);
}

}  // namespace
}  // namespace agentkv::cpu
