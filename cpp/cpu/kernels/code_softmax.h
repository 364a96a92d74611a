// What integer attention needs around the softmax of softmax.h: queries as codes, integer products into scores, weights
// into 16-bit integers. Every step works on one row, in one order.
#pragma once

#include "cpu/kernels/dot.h"
#include "cpu/kernels/scores.h"

namespace agentkv::cpu {
namespace {

// A query row as kernels read it (RowKernels::prepare_query), its codes in lanes of kPack, padded with zeros.
struct CodeQuery {
  float scale;        // with the softmax's and log2(e)
  std::int32_t bias;  // what the offset of K adds up to, negative
  alignas(64) std::int32_t lanes[kMaxHeadDim / 2];

  static AGENTKV_INLINE const CodeQuery& of(const float* q) { return *reinterpret_cast<const CodeQuery*>(q); }
};
static_assert(sizeof(CodeQuery) <= sizeof(float) * query_floats(kMaxHeadDim));

void prepare_code_query(const float* src, float scale, float* dst, int dim) {
  alignas(64) std::int8_t codes[kMaxHeadDim];
  const TurnedRow row(src, dim);
  auto& query = *reinterpret_cast<CodeQuery*>(dst);
  query.scale = int8_codes(row, codes) * scale;
  const int padded = (dim + 63) / 64 * 64;
  for (int d = row.padded; d < padded; ++d) codes[d] = 0;
  int sum = 0;
  for (int d = 0; d < padded; ++d) sum += codes[d];
  query.bias = -kOffset * sum;
  if constexpr (kPack == 4) {
    __builtin_memcpy(query.lanes, codes, static_cast<std::size_t>(padded));
  } else {
    auto* wide = reinterpret_cast<std::int16_t*>(query.lanes);
    for (int d = 0; d < padded; ++d) wide[d] = codes[d];
  }
}

// The scales of a block's rows; 0 where a position is absent.
AGENTKV_INLINE void gather_scales(const float* scales, const std::int32_t* cells, float* out) {
  IVec steps;
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) steps[i] = i;
  for (int p = 0; p < kBlock; p += kWidth) {
    const IVec strange = (load_as<IVec>(cells + p) - cells[p]) ^ steps;
    int any = cells[p] >> 31;
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) any |= strange[i];
    if (any == 0) {
      store(out + p, load(scales + cells[p]));
    } else {
      for (int i = 0; i < kWidth; ++i) out[p + i] = cells[p + i] < 0 ? 0.0f : scales[cells[p + i]];
    }
  }
}

// Products [kBlock] become scores, in place.
AGENTKV_INLINE void scale_products(float* scores, const float* k_scales, float scale) {
#pragma GCC unroll 16
  for (int p = 0; p < kBlock; p += kWidth) {
    const Vec products = __builtin_convertvector(load_as<IVec>(scores + p), Vec);
    store(scores + p, products * load(k_scales + p) * splat(scale));
  }
}

// Weights [kBlock] times the scales of V become 16-bit integers, the largest of them 32,767; returns what one of them
// stands for. A position of weight 0 takes no part, whatever V is there; NaN where one that is not finite does.
AGENTKV_INLINE float code_weights(const float* weights, const float* v_scales, std::int16_t* codes) {
  typedef std::int16_t Shorts __attribute__((vector_size(2 * kWidth)));
  constexpr float kTop = 32767.0f;
  Vec w[kBlock / kWidth], top = {}, bad = {};
#pragma GCC unroll 16
  for (int i = 0; i < kBlock / kWidth; ++i) {
    const Vec weight = load(weights + i * kWidth);
    w[i] = select(weight != Vec{}, weight * load(v_scales + i * kWidth), Vec{});
    top = larger(w[i], top);
    bad += w[i] - w[i];
  }
  const float most = largest(top);
  float bad_sum = 0.0f;
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) bad_sum += bad[i];
  if (bad_sum != 0.0f || most < kTiny) {
#pragma GCC unroll 16
    for (int i = 0; i < kBlock / kWidth; ++i) store(codes + i * kWidth, Shorts{});
    return bad_sum != 0.0f ? kNaN : 0.0f;
  }
  const Vec inverse = splat(kTop / most), magic = splat(12582912.0f);
#pragma GCC unroll 16
  for (int i = 0; i < kBlock / kWidth; ++i) {
    store(codes + i * kWidth, __builtin_convertvector((IVec)(w[i] * inverse + magic) - 0x4b400000, Shorts));
  }
  return most * (1.0f / kTop);
}

// The softmax of row r of one block: products in `scores` into weights in `codes`. Returns by how much the sums fade
// and what a unit of `codes` stands for.
struct Weighed {
  float fade, unit;
};
AGENTKV_INLINE Weighed weigh_block(const BlockArgs& a, int r, const float* k_scales, const float* v_scales,
                                   float* scores, std::int16_t* codes) {
  scale_products(scores, k_scales, CodeQuery::of(a.q[r]).scale);
  bend_scores(a, r, scores);
  const float fade = softmax_block(scores, a.visible[r], a.state[r], padded_dim(a.v_dim));
  return {fade, code_weights(scores, v_scales, codes)};
}

// sum * fade + products * unit.
AGENTKV_INLINE void add_products(float* sum, IVec products, Weighed w) {
  store(sum, fma(__builtin_convertvector(products, Vec), splat(w.unit), load(sum) * splat(w.fade)));
}

void turn_state_back(float* state, int dim) { turn_back(state, dim); }

}  // namespace
}  // namespace agentkv::cpu
