// Many query rows: a block's K (transposed) and V become floats once, then two small matrix products with a softmax in
// between. Same arithmetic per row as stream.h.
#pragma once

#include "cpu/kernels/rows.h"
#include "cpu/kernels/scores.h"

namespace agentkv::cpu {
namespace {

// Register tile: kTileRows query rows by kTileVecs vectors of positions or dims.
constexpr int kTileRows = kWidth == 4 ? 3 : 6;
constexpr int kTileVecs = kWidth == 16 ? 4 : 2;

template <class Row>
AGENTKV_INLINE void pack_k(const BlockRows& rows, int dim, int end, float* kt) {
  for (int p = 0; p < end; p += kWidth) {
    for (int d = 0; d < dim; d += kWidth) {
      Vec k[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) k[i] = Row::load(rows.k[p + i], d);
      transpose(k);
      if (d * Row::kElement % 64 == 0) {
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i) __builtin_prefetch(rows.next_k[p + i] + d * Row::kElement, 0, 2);
      }
      const int n = dim - d < kWidth ? dim - d : kWidth;
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) {
        if (i < n) store(kt + (d + i) * kBlock + p, k[i]);
      }
    }
  }
}

template <class Row>
AGENTKV_INLINE void pack_v(const BlockRows& rows, int padded, int end, float* v) {
  for (int p = 0; p < end; ++p) {
    for (int d = 0; d < padded; d += kWidth) {
      if (d * Row::kElement % 64 == 0) __builtin_prefetch(rows.next_v[p] + d * Row::kElement, 0, 2);
      store(v + p * padded + d, Row::load(rows.v[p], d));
    }
  }
}

template <int N>
AGENTKV_INLINE void tile_scores(const float* const* q, const float* kt, int dim, float* scores) {
  Vec acc[N][kTileVecs] = {};
  const float* rows[N];
#pragma GCC unroll 8
  for (int r = 0; r < N; ++r) rows[r] = q[r];
  for (int d = 0; d < dim; ++d) {
    Vec k[kTileVecs];
#pragma GCC unroll 4
    for (int c = 0; c < kTileVecs; ++c) k[c] = load(kt + d * kBlock + c * kWidth);
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) {
      const Vec x = splat(rows[r][d]);
#pragma GCC unroll 4
      for (int c = 0; c < kTileVecs; ++c) acc[r][c] = fma(x, k[c], acc[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < N; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kTileVecs; ++c) store(scores + r * kBlock + c * kWidth, acc[r][c]);
  }
}

template <int N, int kVecs>
AGENTKV_INLINE void tile_sums(const float* weights, const float* fade, const float* v, int padded, float* const* state,
                              int d, int end) {
  Vec acc[N][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < N; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) acc[r][c] = load(state[r] + d + c * kWidth) * splat(fade[r]);
  }
  for (int p = 0; p < end; ++p) {
    Vec x[kVecs];
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) x[c] = load(v + p * padded + d + c * kWidth);
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) {
      const Vec w = splat(weights[r * kBlock + p]);
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) acc[r][c] = fma(w, x[c], acc[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < N; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) store(state[r] + d + c * kWidth, acc[r][c]);
  }
}

template <int N>
void scores_of_rows(const float* const* q, const float* kt, int dim, int end, float* scores) {
  for (int p = 0; p < end; p += kTileVecs * kWidth) tile_scores<N>(q, kt + p, dim, scores + p);
}

template <int N>
void sums_of_rows(const float* weights, const float* fade, const float* v, int padded, float* const* state, int end) {
  int d = 0;
  for (; d + kTileVecs * kWidth <= padded; d += kTileVecs * kWidth) {
    tile_sums<N, kTileVecs>(weights, fade, v, padded, state, d, end);
  }
  for (; d < padded; d += kWidth) tile_sums<N, 1>(weights, fade, v, padded, state, d, end);
}

AGENTKV_INLINE void scores_of(int n, const float* const* q, const float* kt, int dim, int end, float* scores) {
  switch (n) {
    case 1:
      return scores_of_rows<1>(q, kt, dim, end, scores);
    case 2:
      return scores_of_rows<2>(q, kt, dim, end, scores);
    case 3:
      return scores_of_rows<3>(q, kt, dim, end, scores);
    case 4:
      return scores_of_rows<4>(q, kt, dim, end, scores);
    case 5:
      return scores_of_rows<5>(q, kt, dim, end, scores);
    default:
      return scores_of_rows<6>(q, kt, dim, end, scores);
  }
}

AGENTKV_INLINE void sums_of(int n, const float* weights, const float* fade, const float* v, int padded,
                            float* const* state, int end) {
  switch (n) {
    case 1:
      return sums_of_rows<1>(weights, fade, v, padded, state, end);
    case 2:
      return sums_of_rows<2>(weights, fade, v, padded, state, end);
    case 3:
      return sums_of_rows<3>(weights, fade, v, padded, state, end);
    case 4:
      return sums_of_rows<4>(weights, fade, v, padded, state, end);
    case 5:
      return sums_of_rows<5>(weights, fade, v, padded, state, end);
    default:
      return sums_of_rows<6>(weights, fade, v, padded, state, end);
  }
}

template <class Row>
void packed_block(const BlockArgs& a) {
  const int padded = padded_dim(a.v_dim);
  float* kt = a.scratch;
  float* v = kt + kBlock * a.k_dim;
  float* scores = v + kBlock * padded;
  std::uint64_t seen = 0;
  for (int r = 0; r < a.n_rows; ++r) seen |= a.visible[r];
  const int end = 64 - __builtin_clzll(seen);
  const BlockRows block(a);
  pack_k<Row>(block, a.k_dim, end, kt);
  pack_v<Row>(block, padded, end, v);

  // A strip of rows at a time: its scores stay in the first-level cache, and K and V are reread once per strip.
  for (int begin = 0; begin < a.n_rows; begin += kStripRows) {
    const int rows = a.n_rows - begin < kStripRows ? a.n_rows - begin : kStripRows;
    float fade[kStripRows];
    for (int r = 0; r < rows; r += kTileRows) {
      const int n = rows - r < kTileRows ? rows - r : kTileRows;
      scores_of(n, a.q + begin + r, kt, a.k_dim, end, scores + r * kBlock);
    }
    for (int r = 0; r < rows; ++r) {
      bend_scores(a, begin + r, scores + r * kBlock);
      fade[r] = softmax_block(scores + r * kBlock, a.visible[begin + r], a.state[begin + r], padded);
    }
    for (int r = 0; r < rows; r += kTileRows) {
      const int n = rows - r < kTileRows ? rows - r : kTileRows;
      sums_of(n, scores + r * kBlock, fade + r, v, padded, a.state + begin + r, end);
    }
  }
}

}  // namespace
}  // namespace agentkv::cpu
