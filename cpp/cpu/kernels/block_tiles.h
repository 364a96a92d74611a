// Many rows with AMX. A piece of a panel becomes bytes once, for all rows. Blocks of one group are multiplied one by
// one; of blocks with groups the products of codes and their group's scale are, each as 64 * high + low, so that a
// whole block is two sums of integers.
#pragma once

#include "cpu/kernels/block_pieces.h"
#include "cpu/kernels/block_stream.h"
#include "cpu/kernels/tile_shapes.h"

namespace agentkv::cpu {
namespace {

// Fewer rows are not worth the tiles.
constexpr int kBlockTileRows = kStreamRows + 1;

template <class F>
struct alignas(64) BlockPiece {
  using Layout = PanelLayout<F>;
  static constexpr int kBlocks = kBlockPieceInputs / F::kInputs;
  static constexpr int kParts = Layout::kHasGroups ? 2 : 1;  // low and high, or the bytes themselves
  static constexpr int kPairs = Layout::kHasGroups && F::kHasMinimum ? Layout::kGroups / 2 : 0;

  float scales[kBlocks][kPanel];
  float minima[F::kHasMinimum ? kBlocks : 1][kPanel];
  std::int32_t pairs[kBlocks][kPairs > 0 ? kPairs : 1][kPanel];  // minima of two groups each
  std::int8_t codes[2][kParts][kBlockPieceInputs / 4][64];       // of either half of the panel: [k / 4][output][k % 4]
};

// Bytes without the offset that Bytes<F> has them with.
template <class F>
AGENTKV_INLINE __m512i signed_bytes(IVec bytes) {
  return _mm512_sub_epi8((__m512i)bytes, _mm512_set1_epi8(static_cast<char>(Bytes<F>::kOffset)));
}

// Bytes times `scale` (a 16-bit number to a half of each lane), each as 64 * high + low.
AGENTKV_INLINE void split_products(__m512i bytes, __m512i scale, std::int8_t* low, std::int8_t* high) {
  const auto parts = [&](__m512i values, __m512i& low_part) {
    const __m512i product = _mm512_mullo_epi16(values, scale);
    const __m512i upper = _mm512_srai_epi16(_mm512_add_epi16(product, _mm512_set1_epi16(32)), 6);
    low_part = _mm512_sub_epi16(product, _mm512_slli_epi16(upper, 6));
    return upper;
  };
  __m512i even_low, odd_low;
  const __m512i even = parts(_mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8), even_low);
  const __m512i odd = parts(_mm512_srai_epi16(bytes, 8), odd_low);
  const __mmask64 odd_bytes = 0xaaaaaaaaaaaaaaaaull;
  _mm512_store_si512(low, _mm512_mask_blend_epi8(odd_bytes, even_low, _mm512_slli_epi16(odd_low, 8)));
  _mm512_store_si512(high, _mm512_mask_blend_epi8(odd_bytes, even, _mm512_slli_epi16(odd, 8)));
}

// Quads from kQuad on of one chunk of half a panel. k: the chunk's first quad in the piece.
template <class F, int kQuad>
AGENTKV_INLINE void expand_quads(const std::byte* chunk, const std::byte* scales, int k, int half,
                                 BlockPiece<F>& piece) {
  const __m512i bytes = signed_bytes<F>(quad_bytes<F, kQuad>(chunk));
  if constexpr (PanelLayout<F>::kHasGroups) {
    const IVec scale = group_scales(scales + kQuad * 4 / F::kGroup * kPanel);
    const IVec both = (scale & splat_int(0xffff)) | scale << 16;
    split_products(bytes, (__m512i)both, piece.codes[half][0][k + kQuad], piece.codes[half][1][k + kQuad]);
  } else {
    _mm512_store_si512(piece.codes[half][0][k + kQuad], bytes);
  }
  if constexpr (kQuad + 1 < kChunkInputs / 4) expand_quads<F, kQuad + 1>(chunk, scales, k, half, piece);
}

template <class F>
void expand_blocks(const std::byte* at, int blocks, BlockPiece<F>& piece) {
  using Layout = PanelLayout<F>;
  for (int b = 0; b < blocks; ++b, at += Layout::kBlockBytes) {
    for (int half = 0; half < 2; ++half) {
      const int n = half * 16;
      store(piece.scales[b] + n, block_scales<F>(at + 2 * n));
      if constexpr (F::kHasMinimum) store(piece.minima[b] + n, Fp16Row::load(at + Layout::kMinimumAt + 2 * n, 0));
      for (int pair = 0; pair < BlockPiece<F>::kPairs; ++pair) {
        store(piece.pairs[b][pair] + n, pair_minima(at + Layout::kMinimaAt + (pair * kPanel + n) * 2));
      }
      for (int k = 0; k < F::kInputs; k += kChunkInputs) {
        const std::byte* chunk = at + Layout::chunk_at(k, n);
        prefetch_ahead<Layout::kChunkBytes>(chunk);
        expand_quads<F, 0>(chunk, at + Layout::kScalesAt + k / F::kGroup * kPanel + n, (b * F::kInputs + k) / 4, half,
                           piece);
      }
    }
  }
}

// The products of a block of rows with one block of half a panel: into out[part] [rows][16].
template <class F, int kTile>
AGENTKV_INLINE void block_tiles(const std::int8_t* x, std::size_t stride, const BlockPiece<F>& piece, int b, int half,
                                std::int32_t (*out)[16][16]) {
  constexpr int kStep = F::kInputs < kInputs ? F::kInputs : kInputs;  // inputs of a tile
  const auto row_stride = static_cast<long>(stride);
  const int quad = b * F::kInputs / 4;
  if constexpr (!PanelLayout<F>::kHasGroups) {
    if constexpr (kTile == 0) {
      _tile_zero(0);
      _tile_loadd(4, x, row_stride);
      _tile_loadd(6, piece.codes[half][0][quad], 64);
      _tile_dpbssd(0, 4, 6);
      _tile_stored(0, out[0], 64);
    } else {
      _tile_zero(1);
      _tile_loadd(5, x, row_stride);
      _tile_loadd(7, piece.codes[half][0][quad], 64);
      _tile_dpbssd(1, 5, 7);
      _tile_stored(1, out[0], 64);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
#pragma GCC unroll 4
    for (int k = 0; k < F::kInputs; k += kStep) {
      _tile_loadd(4, x + k, row_stride);
      _tile_loadd(6, piece.codes[half][0][quad + k / 4], 64);
      _tile_loadd(7, piece.codes[half][1][quad + k / 4], 64);
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(1, 4, 7);
    }
    _tile_stored(0, out[0], 64);
    _tile_stored(1, out[1], 64);
  }
}

// Scales the products of a block and adds them to the sums of rows.
template <class F, int kRows>
AGENTKV_INLINE void add_block(Vec (&sum)[kRows], const std::int32_t (*products)[16][16], const BlockPiece<F>& piece,
                              int b, int half, const ActivationCodes& x, const RowsAt& at) {
  const Vec scale = load(piece.scales[b] + half * 16);
  Vec minimum = {};
  if constexpr (F::kHasMinimum) minimum = load(piece.minima[b] + half * 16);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const auto in_row = static_cast<std::size_t>(r) * x.scale_stride + static_cast<std::size_t>(b);
    IVec total = load_as<IVec>(products[0][r]);
    if constexpr (PanelLayout<F>::kHasGroups) total += load_as<IVec>(products[1][r]) << 6;
    const Vec s = splat(at.scales[in_row]);
    sum[r] = fused(__builtin_convertvector(total, Vec) * s, scale, sum[r]);
    if constexpr (F::kHasMinimum && !PanelLayout<F>::kHasGroups) {
      sum[r] = fused(-splat(at.offsets[in_row]), minimum, sum[r]);
    }
    if constexpr (F::kHasMinimum && PanelLayout<F>::kHasGroups) {
      const std::int16_t* sums = sums_of<F, 1>(at.sums + static_cast<std::size_t>(r) * x.sum_stride, b);
      IVec offset = {};
#pragma GCC unroll 8
      for (int pair = 0; pair < BlockPiece<F>::kPairs; ++pair) {
        const IVec both = splat_int(load_as<std::int32_t>(sums + 2 * pair));
        offset = dot_shorts(offset, load_as<IVec>(piece.pairs[b][pair] + half * 16), both);
      }
      sum[r] = fused(-(__builtin_convertvector(offset, Vec) * s), minimum, sum[r]);
    }
  }
}

// Adds a piece's blocks to sums [kRows][kPanel] of half a panel. Tiles work on one block while the one before is
// scaled.
template <class F, int kRows>
void add_blocks(const ActivationCodes& x, const RowsAt& at, const BlockPiece<F>& piece, int blocks, int half,
                bool first, float* sums) {
  alignas(64) std::int32_t products[2][BlockPiece<F>::kParts][16][16];
  Vec sum[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) sum[r] = first ? Vec{} : load(sums + r * kPanel + half * 16);
  block_tiles<F, 0>(at.codes, x.stride, piece, 0, half, products[0]);
  constexpr int kMost = BlockPiece<F>::kBlocks;
  for (int b = 0; b < kMost && b < blocks; b += 2) {
    if (b + 1 < blocks) block_tiles<F, 1>(at.codes + (b + 1) * F::kInputs, x.stride, piece, b + 1, half, products[1]);
    add_block<F, kRows>(sum, products[0], piece, b, half, x, at);
    if (b + 1 == blocks) break;
    if (b + 2 < kMost && b + 2 < blocks)
      block_tiles<F, 0>(at.codes + (b + 2) * F::kInputs, x.stride, piece, b + 2, half, products[0]);
    add_block<F, kRows>(sum, products[1], piece, b + 1, half, x, at);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) store(sums + r * kPanel + half * 16, sum[r]);
}

// Rows [begin, end) and one panel, whose blocks pass by in pieces.
template <class F>
void tile_block_panel(const BlockLinearArgs& a, const std::byte* panel, int begin, int end, TileShapes& shapes) {
  using Layout = PanelLayout<F>;
  BlockPiece<F> piece;
  const int all = a.inputs / F::kInputs;
  for (int b = 0; b < all; b += BlockPiece<F>::kBlocks, panel += BlockPiece<F>::kBlocks * Layout::kBlockBytes) {
    const int blocks = all - b < BlockPiece<F>::kBlocks ? all - b : BlockPiece<F>::kBlocks;
    expand_blocks<F>(panel, blocks, piece);
    settle_stores(&piece);
    for (int row = begin; row < end; row += kRowBlock) {
      const int rows = tile_rows(end - row);
      shapes.set(rows);
      const auto add = rows == 16 ? add_blocks<F, 16> : rows == 8 ? add_blocks<F, 8> : add_blocks<F, 4>;
      const RowsAt at = rows_at<F, 1>(a.x, row, b);
      float* sums = a.scratch + (row - begin) * kPanel;
      for (int half = 0; half < 2; ++half) add(a.x, at, piece, blocks, half, b == 0, sums);
    }
  }
}

template <class F>
void tile_block_panels(const BlockLinearArgs& a) {
  TileShapes shapes(F::kInputs < kInputs ? F::kInputs : kInputs);
  const std::byte* panel = a.panels;
  for (int first = 0; first < a.outputs; first += kPanel, panel += a.panel_bytes) {
    const int n = a.outputs - first < kPanel ? a.outputs - first : kPanel;
    alignas(64) float bias[kPanel];
    load_bias(a.bias == nullptr ? nullptr : a.bias + first, n, bias);
    for (int begin = 0; begin < a.rows; begin += kScratchRows) {
      const int end = a.rows - begin < kScratchRows ? a.rows : begin + kScratchRows;
      tile_block_panel<F>(a, panel, begin, end, shapes);
      write_sums(a, first, n, bias, begin, end, a.scratch);
    }
  }
}

}  // namespace
}  // namespace agentkv::cpu
