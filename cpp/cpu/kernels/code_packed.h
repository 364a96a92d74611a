// Many query rows over codes: a block's K (transposed) and V (in pairs of positions) become lanes once, then two small
// integer matrix products with a softmax in between. Same arithmetic per row as code_stream.h.
#pragma once

#include "cpu/kernels/code_softmax.h"
#include "cpu/kernels/rows.h"

namespace agentkv::cpu {
namespace {

// Register tile: kCodeRows query rows by kCodeVecs vectors of positions or dims.
constexpr int kCodeRows = kWidth == 4 ? 3 : 6;
constexpr int kCodeVecs = kWidth == 16 ? 4 : 2;

// K as [lane][position], kBlock positions to a row.
template <class Row>
AGENTKV_INLINE void pack_k_codes(const BlockRows& rows, int dim, int end, std::int32_t* kt) {
  const int lanes = dim / kPack;
  for (int p = 0; p < end; p += kWidth) {
    for (int lane = 0; lane < lanes; lane += kWidth) {
      Vec k[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) k[i] = (Vec)load_lanes<Row>(rows.k[p + i], lane);
      transpose(k);
      if (lane * kPack % (64 * Row::kElements) == 0) {
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i) {
          __builtin_prefetch(rows.next_k[p + i] + lane * kPack / Row::kElements, 0, 2);
        }
      }
      const int n = lanes - lane < kWidth ? lanes - lane : kWidth;
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) {
        if (i < n) store(kt + (lane + i) * kBlock + p, k[i]);
      }
    }
  }
}

// V as [position / 2][dim], two positions to a lane.
template <class Row>
AGENTKV_INLINE void pack_v_codes(const BlockRows& rows, int padded, int end, std::int32_t* v) {
  for (int p = 0; p < end; p += 2) {
    for (int d = 0; d < padded; d += 16) {
      if (d % (64 * Row::kElements) == 0) {
        __builtin_prefetch(rows.next_v[p] + d / Row::kElements, 0, 2);
        __builtin_prefetch(rows.next_v[p + 1] + d / Row::kElements, 0, 2);
      }
      IVec pairs[16 / kWidth];
      load_pairs<Row>(rows.v[p], rows.v[p + 1], d, pairs);
#pragma GCC unroll 4
      for (int i = 0; i < 16 / kWidth; ++i) store(v + p / 2 * padded + d + i * kWidth, pairs[i]);
    }
  }
}

template <int N>
AGENTKV_INLINE void tile_products(const float* const* q, const std::int32_t* kt, int lanes, std::int32_t* products) {
  IVec acc[N][kCodeVecs];
  const std::int32_t* rows[N];
#pragma GCC unroll 8
  for (int r = 0; r < N; ++r) {
    const CodeQuery& query = CodeQuery::of(q[r]);
    rows[r] = query.lanes;
#pragma GCC unroll 4
    for (int c = 0; c < kCodeVecs; ++c) acc[r][c] = splat_int(query.bias);
  }
  for (int lane = 0; lane < lanes; ++lane) {
    IVec k[kCodeVecs];
#pragma GCC unroll 4
    for (int c = 0; c < kCodeVecs; ++c) k[c] = load_as<IVec>(kt + lane * kBlock + c * kWidth);
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) {
      const IVec x = splat_int(rows[r][lane]);
#pragma GCC unroll 4
      for (int c = 0; c < kCodeVecs; ++c) acc[r][c] = dot_codes(acc[r][c], k[c], x);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < N; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kCodeVecs; ++c) store(products + r * kBlock + c * kWidth, acc[r][c]);
  }
}

template <int N, int kVecs>
AGENTKV_INLINE void tile_code_sums(const std::int16_t* weights, const Weighed* weighed, const std::int32_t* v,
                                   int padded, float* const* state, int d, int end) {
  IVec acc[N][kVecs] = {};
  for (int p = 0; p < end; p += 2) {
    IVec x[kVecs];
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) x[c] = load_as<IVec>(v + p / 2 * padded + d + c * kWidth);
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) {
      const IVec w = splat_int(load_as<std::int32_t>(weights + r * kBlock + p));
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) acc[r][c] = dot_pairs(acc[r][c], x[c], w);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < N; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kVecs; ++c) add_products(state[r] + d + c * kWidth, acc[r][c], weighed[r]);
  }
}

template <int N>
void products_of_rows(const float* const* q, const std::int32_t* kt, int lanes, int end, std::int32_t* products) {
  for (int p = 0; p < end; p += kCodeVecs * kWidth) tile_products<N>(q, kt + p, lanes, products + p);
}

template <int N>
void sums_of_code_rows(const std::int16_t* weights, const Weighed* weighed, const std::int32_t* v, int padded,
                       float* const* state, int end) {
  int d = 0;
  for (; d + kCodeVecs * kWidth <= padded; d += kCodeVecs * kWidth) {
    tile_code_sums<N, kCodeVecs>(weights, weighed, v, padded, state, d, end);
  }
  for (; d < padded; d += kWidth) tile_code_sums<N, 1>(weights, weighed, v, padded, state, d, end);
}

// By the number of rows of a tile, from 1 on.
constexpr decltype(&products_of_rows<1>) kProducts[] = {products_of_rows<1>, products_of_rows<2>, products_of_rows<3>,
                                                        products_of_rows<4>, products_of_rows<5>, products_of_rows<6>};
constexpr decltype(&sums_of_code_rows<1>) kSums[] = {sums_of_code_rows<1>, sums_of_code_rows<2>, sums_of_code_rows<3>,
                                                     sums_of_code_rows<4>, sums_of_code_rows<5>, sums_of_code_rows<6>};

template <class KeyRow, class ValueRow>
void packed_code_block(const BlockArgs& a) {
  const int padded = padded_dim(a.v_dim);
  auto* kt = reinterpret_cast<std::int32_t*>(a.scratch);
  std::int32_t* v = kt + kBlock * a.k_dim / kPack;
  auto* scores = reinterpret_cast<float*>(v + kBlock / 2 * padded);
  auto* weights = reinterpret_cast<std::int16_t*>(scores + kStripRows * kBlock);
  alignas(64) float k_scales[kBlock], v_scales[kBlock];
  std::uint64_t seen = 0;
  for (int r = 0; r < a.n_rows; ++r) seen |= a.visible[r];
  const int end = 64 - __builtin_clzll(seen);
  const BlockRows block(a);
  gather_scales(a.k_scales, a.cells, k_scales);
  gather_scales(a.v_scales, a.cells, v_scales);
  pack_k_codes<KeyRow>(block, a.k_dim, end, kt);
  pack_v_codes<ValueRow>(block, padded, end, v);

  for (int begin = 0; begin < a.n_rows; begin += kStripRows) {
    const int rows = a.n_rows - begin < kStripRows ? a.n_rows - begin : kStripRows;
    Weighed weighed[kStripRows];
    for (int r = 0; r < rows; r += kCodeRows) {
      const int n = rows - r < kCodeRows ? rows - r : kCodeRows;
      kProducts[n - 1](a.q + begin + r, kt, a.k_dim / kPack, end, reinterpret_cast<std::int32_t*>(scores + r * kBlock));
    }
    for (int r = 0; r < rows; ++r) {
      weighed[r] = weigh_block(a, begin + r, k_scales, v_scales, scores + r * kBlock, weights + r * kBlock);
    }
    for (int r = 0; r < rows; r += kCodeRows) {
      const int n = rows - r < kCodeRows ? rows - r : kCodeRows;
      kSums[n - 1](weights + r * kBlock, weighed + r, v, padded, a.state + begin + r, end);
    }
  }
}

}  // namespace
}  // namespace agentkv::cpu
