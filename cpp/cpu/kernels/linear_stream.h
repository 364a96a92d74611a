// Few rows at a time: weights are multiplied as they stream by, once for all of these rows.
#pragma once

#include "cpu/kernels/linear_dot.h"
#include "cpu/kernels/linear_tiling.h"

namespace agentkv::cpu {
namespace {

template <int kGroup>
constexpr std::size_t group_bytes() {
  return kPanel * (2 + kGroup / 2);
}

// Adds the products of the codes [8 i, kSums) of a part of a group.
template <int i, int N>
AGENTKV_INLINE void add_eights(const std::byte* weights, const std::int8_t* x, std::size_t stride, IVec (&acc)[N]) {
  const auto both = load_as<UVec>(weights + i * 64);
  const auto low = (IVec)(both & 0x0f0f0f0f), high = (IVec)(both >> 4 & 0x0f0f0f0f);
#pragma GCC unroll 8
  for (int r = 0; r < N; ++r) {
    const std::int8_t* codes = x + static_cast<std::size_t>(r) * stride;
    acc[r] = dot_nibbles_at<2 * i>(acc[r], low, codes);
    acc[r] = dot_nibbles_at<2 * i + 1>(acc[r], high, codes);
  }
  if constexpr (i + 1 < kSums / 8) add_eights<i + 1, N>(weights, x, stride, acc);
}

// The integer products of N rows with kWidth outputs of one group. x: its codes of the first row.
template <int kGroup, int N>
AGENTKV_INLINE void group_products(const std::byte* weights, const std::int8_t* x, std::size_t stride,
                                   const std::int32_t* sums, std::size_t sum_stride, IVec (&total)[N]) {
#pragma GCC unroll 2
  for (int part = 0; part < kGroup / kSums; ++part) {
    IVec acc[N] = {};
    add_eights<0, N>(weights + part * kSums * 8, x + part * kSums, stride, acc);
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) {
      const IVec products = nibble_sums(acc[r]) - splat_int(8 * sums[static_cast<std::size_t>(r) * sum_stride + part]);
      total[r] = part == 0 ? products : total[r] + products;
    }
  }
}

template <int N>
AGENTKV_INLINE void finish_rows(const Vec (&sum)[kVecs][N], const float* column, const float* bias, const LinearArgs& a,
                                int row, int first, int n) {
#pragma GCC unroll 8
  for (int v = 0; v < kVecs; ++v) {
    const int left = n - v * kWidth;
    if (left <= 0) return;
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) {
      float* y = output_row(a, row + r) + first + v * kWidth;
      finish_outputs(sum[v][r], load(column + v * kWidth), a.x, row + r, load(bias + v * kWidth), y, left);
    }
  }
}

// Outputs [first, first + n) of rows [row, row + N).
template <int kGroup, int N>
void stream_group_rows(const LinearArgs& a, const std::byte* panel, int row, int first, int n, const float* bias) {
  const auto* column = reinterpret_cast<const float*>(panel);
  const std::int8_t* x = a.x.codes + static_cast<std::size_t>(row) * a.x.stride;
  const std::int32_t* sums = a.x.sums + static_cast<std::size_t>(row) * a.x.sum_stride;
  const std::byte* at = panel + sizeof(float) * kPanel;
  Vec sum[kVecs][N] = {};
  for (int g = 0; g < a.inputs / kGroup; ++g, at += group_bytes<kGroup>()) {
    prefetch_ahead<group_bytes<kGroup>(), kStreamAhead<4, N>>(at);
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      const int half = v * kWidth / 16, lane = v * kWidth % 16;
      const std::byte* weights = at + 2 * kPanel + half * (kGroup * 8) + lane * 4;
      IVec products[N];
      group_products<kGroup, N>(weights, read_anew(x + g * kGroup), a.x.stride, sums + g * (kGroup / kSums),
                                a.x.sum_stride, products);
      const Vec scales = load_scales(at + 2 * v * kWidth);
#pragma GCC unroll 8
      for (int r = 0; r < N; ++r) sum[v][r] = fma(__builtin_convertvector(products[r], Vec), scales, sum[v][r]);
    }
  }
  finish_rows<N>(sum, column, bias, a, row, first, n);
}

// The sums of one group that spans all inputs, with 8-bit codes.
template <int N>
void stream_byte_rows(const LinearArgs& a, const std::byte* panel, int row, int first, int n, const float* bias) {
  const auto* column = reinterpret_cast<const float*>(panel);
  const std::int8_t* x = a.x.codes + static_cast<std::size_t>(row) * a.x.stride;
  const std::byte* at = panel + 2 * sizeof(float) * kPanel;
  IVec acc[kVecs][N] = {};
  for (int k = 0; k < a.inputs; k += 4, at += 4 * kPanel) {
    prefetch_ahead<4 * kPanel, kStreamAhead<8, N>>(at);
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      const IVec w = load_bytes(at + 4 * v * kWidth);
#pragma GCC unroll 8
      for (int r = 0; r < N; ++r) {
        acc[v][r] = dot_bytes(acc[v][r], w, codes_at(x + static_cast<std::size_t>(r) * a.x.stride + k));
      }
    }
  }
  Vec sum[kVecs][N];
#pragma GCC unroll 8
  for (int v = 0; v < kVecs; ++v) {
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) {
      const IVec products = acc[v][r] - splat_int(kByteOffset * a.x.totals[row + r]);
      sum[v][r] = __builtin_convertvector(products, Vec) * load(column + kPanel + v * kWidth);
    }
  }
  finish_rows<N>(sum, column, bias, a, row, first, n);
}

using StreamRows = void (*)(const LinearArgs&, const std::byte*, int, int, int, const float*);

// By the number of rows, from 1 on.
template <int kGroup>
constexpr StreamRows kStreamGroups[8] = {stream_group_rows<kGroup, 1>,          stream_group_rows<kGroup, 2>,
                                         stream_group_rows<kGroup, 3>,          stream_group_rows<kGroup, 4>,
                                         stream_group_rows<kGroup, at_most(5)>, stream_group_rows<kGroup, at_most(6)>,
                                         stream_group_rows<kGroup, at_most(7)>, stream_group_rows<kGroup, at_most(8)>};
constexpr StreamRows kStreamBytes[8] = {stream_byte_rows<1>,          stream_byte_rows<2>,
                                        stream_byte_rows<3>,          stream_byte_rows<4>,
                                        stream_byte_rows<at_most(5)>, stream_byte_rows<at_most(6)>,
                                        stream_byte_rows<at_most(7)>, stream_byte_rows<at_most(8)>};

}  // namespace
}  // namespace agentkv::cpu
