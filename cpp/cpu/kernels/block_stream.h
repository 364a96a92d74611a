// Few rows at a time: blocks are multiplied as they stream by, once for all of these rows.
#pragma once

#include "cpu/kernels/block_codes.h"
#include "cpu/kernels/linear_tiling.h"

namespace agentkv::cpu {
namespace {

// Adds a quad of rows [r, N).
template <class F, int kQuad, int N, int r = 0>
AGENTKV_INLINE void add_quad(IVec w, const std::int8_t* x, IVec (&acc)[N]) {
  acc[r] = dot_quads_at<F, kQuad * N + r>(acc[r], w, x);
  if constexpr (r + 1 < N) add_quad<F, kQuad, N, r + 1>(w, x, acc);
}

// Adds quads [kQuad, kEnd) of a chunk. x: the chunk's codes of rows that lie together.
template <class F, int kQuad, int kEnd, int N>
AGENTKV_INLINE void add_quads(const std::byte* chunk, const std::int8_t* x, IVec (&acc)[N]) {
  add_quad<F, kQuad, N>(quad_bytes<F, kQuad>(chunk), x, acc);
  if constexpr (kQuad + 1 < kEnd) add_quads<F, kQuad + 1, kEnd, N>(chunk, x, acc);
}

// A group's products, the offset of its bytes taken off. bases: of the group, of rows that lie together.
template <class F, int kFirst, int N>
AGENTKV_INLINE void group_of_chunk(const std::byte* chunk, const std::int8_t* x, const std::int32_t* bases,
                                   IVec (&acc)[N]) {
#pragma GCC unroll 8
  for (int r = 0; r < N; ++r) acc[r] = Bytes<F>::kOffset == 0 ? IVec{} : splat_int(bases[r]);
  add_quads<F, kFirst, kFirst + F::kGroup / 4, N>(chunk, x, acc);
}

template <class F, int N>
AGENTKV_INLINE void add_group(const std::byte* scales, const IVec (&acc)[N], IVec (&total)[N]) {
  const IVec scale = group_scales(scales);
#pragma GCC unroll 8
  for (int r = 0; r < N; ++r) total[r] += acc[r] * scale;
}

// I of N rows with kWidth outputs of a block that has groups.
template <class F, int N>
AGENTKV_INLINE void block_products(const std::byte* scales, const std::byte* chunk, const std::int8_t* x,
                                   const std::int32_t* bases, IVec (&total)[N]) {
  using Layout = PanelLayout<F>;
#pragma GCC unroll 8
  for (int r = 0; r < N; ++r) total[r] = IVec{};
  for (int k = 0; k < F::kInputs; k += kChunkInputs, chunk += Layout::kChunkBytes, x += kChunkInputs * N) {
    prefetch_ahead<Layout::kChunkBytes, kStreamAhead<F::kBits, N>>(chunk);
    IVec acc[N];
    group_of_chunk<F, 0, N>(chunk, x, bases, acc);
    add_group<F, N>(scales, acc, total);
    scales += kPanel, bases += N;
    if constexpr (F::kGroup == 16) {
      group_of_chunk<F, 4, N>(chunk, x, bases, acc);
      add_group<F, N>(scales, acc, total);
      scales += kPanel, bases += N;
    }
  }
}

// Outputs [first, first + n) of rows [row, row + N), which lie together.
template <class F, int N>
void stream_block_rows(const BlockLinearArgs& a, const std::byte* at, int row, int first, int n, const float* bias) {
  using Layout = PanelLayout<F>;
  const auto r0 = static_cast<std::size_t>(row);
  const std::int8_t* x = a.x.codes + r0 * a.x.stride;
  const std::int16_t* all_sums = a.x.sums + r0 * a.x.sum_stride;
  const std::int32_t* bases = a.x.bases + r0 * a.x.base_stride;
  const float *scales = a.x.scales + r0 * a.x.scale_stride, *offsets = a.x.offsets + r0 * a.x.scale_stride;
  Vec sum[kVecs][N] = {};
  for (int b = 0; b < a.inputs / F::kInputs;
       ++b, at += Layout::kBlockBytes, x += F::kInputs * N, bases += Layout::kGroups * N) {
    prefetch_ahead<Layout::kHasGroups ? Layout::kCodesAt : Layout::kBlockBytes, kStreamAhead<F::kBits, N>>(at);
    const std::int16_t* sums = sums_of<F, N>(all_sums, b);
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      const int n0 = v * kWidth;
      const std::byte* chunk = at + Layout::chunk_at(0, n0) + Layout::lane(0, n0);
      const std::int8_t* codes = read_anew(x);
      IVec total[N];
      if constexpr (Layout::kHasGroups) {
        block_products<F, N>(at + Layout::kScalesAt + n0, chunk, codes, bases, total);
      } else {
        group_of_chunk<F, 0, N>(chunk, codes, bases, total);
      }
      const Vec scale = block_scales<F>(at + 2 * n0);
#pragma GCC unroll 8
      for (int r = 0; r < N; ++r) {
        const Vec s = splat(scales[b * N + r]);
        sum[v][r] = fused(__builtin_convertvector(total[r], Vec) * s, scale, sum[v][r]);
        if constexpr (F::kHasMinimum) {
          const Vec minimum = Fp16Row::load(at + Layout::kMinimumAt + 2 * n0, 0);
          if constexpr (Layout::kHasGroups) {
            const IVec products = minimum_products<F, N>(at + Layout::kMinimaAt + 2 * n0, sums + 2 * r);
            sum[v][r] = fused(-(__builtin_convertvector(products, Vec) * s), minimum, sum[v][r]);
          } else {
            sum[v][r] = fused(-splat(offsets[b * N + r]), minimum, sum[v][r]);
          }
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVecs; ++v) {
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) {
      float* y = a.y + (r0 + static_cast<std::size_t>(r)) * a.y_stride + first + v * kWidth;
      write_outputs(sum[v][r] + load(bias + v * kWidth), y, n - v * kWidth);
    }
  }
}

using StreamBlockRows = void (*)(const BlockLinearArgs&, const std::byte*, int, int, int, const float*);

// By the number of rows, from 1 on.
template <class F>
constexpr StreamBlockRows kStreamBlocks[8] = {stream_block_rows<F, 1>,          stream_block_rows<F, 2>,
                                              stream_block_rows<F, 3>,          stream_block_rows<F, 4>,
                                              stream_block_rows<F, at_most(5)>, stream_block_rows<F, at_most(6)>,
                                              stream_block_rows<F, at_most(7)>, stream_block_rows<F, at_most(8)>};

}  // namespace
}  // namespace agentkv::cpu
