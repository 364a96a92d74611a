// Many rows without tiles. A piece of a panel becomes bytes once, for all rows; those that lie together then meet two
// vectors of outputs at a time, so that each byte that is loaded is multiplied often.
#pragma once

#include "cpu/kernels/block_pieces.h"
#include "cpu/kernels/block_stream.h"

namespace agentkv::cpu {
namespace {

// Fewer rows are streamed: until then, making bytes of a piece costs more than meeting it as it is, again and again.
constexpr int kExpandedRows = 8 * kStreamRows;
constexpr int kVecsTogether = 2;

template <class F>
struct alignas(64) ExpandedPiece {
  using Layout = PanelLayout<F>;
  static constexpr int kBlocks = kBlockPieceInputs / F::kInputs;
  static constexpr int kPairs = Layout::kHasGroups && F::kHasMinimum ? Layout::kGroups / 2 : 0;

  float scales[kBlocks][kPanel];
  float minima[F::kHasMinimum ? kBlocks : 1][kPanel];
  std::int32_t group_scales[Layout::kHasGroups ? kBlocks * Layout::kGroups : 1][kPanel];
  std::int32_t pairs[kBlocks][kPairs > 0 ? kPairs : 1][kPanel];  // minima of two groups each
  std::int8_t bytes[kBlockPieceInputs / 4][kPanel][4];           // as Bytes<F> has them
};

// Quads from kQuad on of one chunk, of the vector of outputs from n on.
template <class F, int kQuad>
AGENTKV_INLINE void expand_bytes(const std::byte* chunk, int n, std::int8_t (*to)[kPanel][4]) {
  store(to[kQuad][n], quad_bytes<F, kQuad>(chunk));
  if constexpr (kQuad + 1 < kChunkInputs / 4) expand_bytes<F, kQuad + 1>(chunk, n, to);
}

template <class F>
void expand(const std::byte* at, int blocks, ExpandedPiece<F>& piece) {
  using Layout = PanelLayout<F>;
  for (int b = 0; b < blocks; ++b, at += Layout::kBlockBytes) {
    for (int n = 0; n < kPanel; n += kWidth) {
      store(piece.scales[b] + n, block_scales<F>(at + 2 * n));
      if constexpr (F::kHasMinimum) store(piece.minima[b] + n, Fp16Row::load(at + Layout::kMinimumAt + 2 * n, 0));
      for (int g = 0; Layout::kHasGroups && g < Layout::kGroups; ++g) {
        store(piece.group_scales[b * Layout::kGroups + g] + n, group_scales(at + Layout::kScalesAt + g * kPanel + n));
      }
      for (int pair = 0; pair < ExpandedPiece<F>::kPairs; ++pair) {
        store(piece.pairs[b][pair] + n, pair_minima(at + Layout::kMinimaAt + (pair * kPanel + n) * 2));
      }
      for (int k = 0; k < F::kInputs; k += kChunkInputs) {
        const std::byte* chunk = at + Layout::chunk_at(k, n) + Layout::lane(0, n);
        if (n % 16 == 0) prefetch_ahead<Layout::kChunkBytes>(chunk);
        expand_bytes<F, 0>(chunk, n, piece.bytes + (b * F::kInputs + k) / 4);
      }
    }
  }
}

// Adds a quad of two vectors of outputs to the sums of rows [r, kStreamRows).
template <class F, int r = 0>
AGENTKV_INLINE void add_two_quads(IVec w, IVec next, const std::int8_t* x, IVec (&acc)[kStreamRows][kVecsTogether]) {
#if defined(__ARM_FEATURE_DOTPROD)
  acc[r][0] = dot_nibbles_at<r>(acc[r][0], w, x);
  acc[r][1] = dot_nibbles_at<r>(acc[r][1], next, x);
#else
  const IVec code = codes_at(x + 4 * r);
  acc[r][0] = dot_quads<F>(acc[r][0], w, code);
  acc[r][1] = dot_quads<F>(acc[r][1], next, code);
#endif
  if constexpr (r + 1 < kStreamRows) add_two_quads<F, r + 1>(w, next, x, acc);
}

// The products of a group of inputs, the offset of its bytes taken off. x, bases: of the group.
template <class F>
AGENTKV_INLINE void group_products(const std::int8_t (*bytes)[kPanel][4], int n, const std::int8_t* x,
                                   const std::int32_t* bases, IVec (&acc)[kStreamRows][kVecsTogether]) {
#pragma GCC unroll 8
  for (int r = 0; r < kStreamRows; ++r) acc[r][0] = acc[r][1] = Bytes<F>::kOffset == 0 ? IVec{} : splat_int(bases[r]);
#pragma GCC unroll 8
  for (int quad = 0; quad < F::kGroup / 4; ++quad) {
    const auto w = load_as<IVec>(bytes[quad][n]), next = load_as<IVec>(bytes[quad][n + kWidth]);
    add_two_quads<F>(w, next, x + 4 * quad * kStreamRows, acc);
  }
}

// I of the rows with two vectors of outputs, from n on, of block b. x, bases: of the block.
template <class F>
AGENTKV_INLINE void expanded_products(const ExpandedPiece<F>& piece, int b, int n, const std::int8_t* x,
                                      const std::int32_t* bases, IVec (&total)[kStreamRows][kVecsTogether]) {
  constexpr int kGroups = PanelLayout<F>::kGroups;
  const auto* bytes = piece.bytes + b * F::kInputs / 4;
  if constexpr (kGroups == 1) {
    group_products<F>(bytes, n, x, bases, total);
  } else {
#pragma GCC unroll 8
    for (int r = 0; r < kStreamRows; ++r) total[r][0] = total[r][1] = IVec{};
    for (int g = 0; g < kGroups; ++g, bytes += F::kGroup / 4, x += F::kGroup * kStreamRows) {
      IVec acc[kStreamRows][kVecsTogether];
      group_products<F>(bytes, n, x, bases + g * kStreamRows, acc);
      const std::int32_t* scales = piece.group_scales[b * kGroups + g] + n;
#pragma GCC unroll 8
      for (int r = 0; r < kStreamRows; ++r) {
        total[r][0] += acc[r][0] * load_as<IVec>(scales);
        total[r][1] += acc[r][1] * load_as<IVec>(scales + kWidth);
      }
    }
  }
}

// Adds a piece's blocks to sums [kStreamRows][kPanel], of two vectors of outputs from n on.
template <class F>
void add_expanded(const RowsAt& at, const ExpandedPiece<F>& piece, int blocks, int n, float* out) {
  for (int b = 0; b < blocks; ++b) {
    const std::int16_t* sums = sums_of<F, kStreamRows>(at.sums, b);
    const std::int32_t* bases = at.bases + b * PanelLayout<F>::kGroups * kStreamRows;
    IVec total[kStreamRows][kVecsTogether];
    expanded_products<F>(piece, b, n, at.codes + b * F::kInputs * kStreamRows, bases, total);
#pragma GCC unroll 8
    for (int r = 0; r < kStreamRows; ++r) {
      const Vec s = splat(at.scales[b * kStreamRows + r]);
#pragma GCC unroll 2
      for (int v = 0; v < kVecsTogether; ++v) {
        const int j = n + v * kWidth;
        Vec sum = load(out + r * kPanel + j);
        sum = fused(__builtin_convertvector(total[r][v], Vec) * s, load(piece.scales[b] + j), sum);
        if constexpr (F::kHasMinimum && ExpandedPiece<F>::kPairs == 0) {
          sum = fused(-splat(at.offsets[b * kStreamRows + r]), load(piece.minima[b] + j), sum);
        }
        if constexpr (F::kHasMinimum && ExpandedPiece<F>::kPairs > 0) {
          IVec offset = {};
#pragma GCC unroll 8
          for (int pair = 0; pair < ExpandedPiece<F>::kPairs; ++pair) {
            const IVec both = splat_int(load_as<std::int32_t>(sums + 2 * (pair * kStreamRows + r)));
            offset = dot_shorts(offset, load_as<IVec>(piece.pairs[b][pair] + j), both);
          }
          sum = fused(-(__builtin_convertvector(offset, Vec) * s), load(piece.minima[b] + j), sum);
        }
        store(out + r * kPanel + j, sum);
      }
    }
  }
}

// Rows [begin, end), whole groups of those that lie together, and the panel from output `first` on, whose blocks pass
// by in pieces.
template <class F>
void expanded_panel(const BlockLinearArgs& a, const std::byte* panel, int first, int n, const float* bias, int begin,
                    int end) {
  using Piece = ExpandedPiece<F>;
  Piece piece;
  const int all = a.inputs / F::kInputs;
  for (int b = 0; b < all; b += Piece::kBlocks, panel += Piece::kBlocks * PanelLayout<F>::kBlockBytes) {
    const int blocks = all - b < Piece::kBlocks ? all - b : Piece::kBlocks;
    const bool is_last = b + blocks == all;
    expand<F>(panel, blocks, piece);
    for (int row = begin; row < end; row += kStreamRows) {
      const RowsAt at = rows_at<F, kStreamRows>(a.x, row, b);
      float* sums = a.scratch + (row - begin) * kPanel;
      if (b == 0) __builtin_memset(sums, 0, sizeof(float) * kPanel * kStreamRows);
      if (is_last) prefetch_sums(a, first, row, row + kStreamRows);
      for (int j = 0; j < kPanel; j += kVecsTogether * kWidth) add_expanded<F>(at, piece, blocks, j, sums);
      if (is_last) write_sums(a, first, n, bias, row, row + kStreamRows, sums);
    }
  }
}

template <class F>
void expanded_panels(const BlockLinearArgs& a) {
  const std::byte* panel = a.panels;
  const int rest = a.rows % kStreamRows, whole = a.rows - rest;
  for (int first = 0; first < a.outputs; first += kPanel, panel += a.panel_bytes) {
    const int n = a.outputs - first < kPanel ? a.outputs - first : kPanel;
    alignas(64) float bias[kPanel];
    load_bias(a.bias == nullptr ? nullptr : a.bias + first, n, bias);
    for (int begin = 0; begin < whole; begin += kScratchRows) {
      expanded_panel<F>(a, panel, first, n, bias, begin, whole - begin < kScratchRows ? whole : begin + kScratchRows);
    }
    if (rest > 0) kStreamBlocks<F>[rest - 1](a, panel, whole, first, n, bias);
  }
}

}  // namespace
}  // namespace agentkv::cpu
