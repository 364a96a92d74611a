// Many rows with AMX: sixteen rows by sixteen outputs to a tile of integers.
#pragma once

#include "cpu/kernels/linear_stream.h"
#include "cpu/kernels/tile_shapes.h"

namespace agentkv::cpu {
namespace {

// Fewer rows are not worth the tiles: codes of 4 bits must first become bytes, in memory (bench_linear shows where).
template <int kGroup>
constexpr int kTileRows = kGroup == 0 ? 4 : kStreamRows + 1;

// A piece of a panel with its 4-bit codes as bytes and its scales as floats, for all rows to use.
constexpr int kPieceInputs = 512;
struct alignas(64) Piece {
  float scales[kPieceInputs / 32][kPanel];
  std::int8_t codes[2][kPieceInputs / 4][64];  // of either half of the panel: [k / 4][output][k % 4]
};

template <int kGroup>
AGENTKV_INLINE void expand(const std::byte* at, int groups, Piece& piece) {
  const auto fifteens = _mm512_set1_epi8(15), eights = _mm512_set1_epi8(8);
  for (int g = 0; g < groups; ++g, at += group_bytes<kGroup>()) {
    prefetch_ahead<group_bytes<kGroup>()>(at);
    store(piece.scales[g], load_scales(at));
    store(piece.scales[g] + kWidth, load_scales(at + 2 * kWidth));
    const std::byte* codes = at + 2 * kPanel;
    for (int half = 0; half < 2; ++half, codes += kGroup * 8) {
      auto* to = piece.codes[half][g * kGroup / 4];
#pragma GCC unroll 8
      for (int i = 0; i < kGroup / 8; ++i) {
        const __m512i both = _mm512_loadu_si512(codes + 64 * i);
        const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), fifteens);
        _mm512_store_si512(to + 128 * i, _mm512_sub_epi8(_mm512_and_si512(both, fifteens), eights));
        _mm512_store_si512(to + 128 * i + 64, _mm512_sub_epi8(high, eights));
      }
    }
  }
}

// One group's products of a block of rows with half a panel, into out [rows][16].
template <int kTile>
AGENTKV_INLINE void tile_products(const std::int8_t* x, std::size_t stride, const std::int8_t* weights,
                                  std::int32_t (*out)[16]) {
  if constexpr (kTile == 0) {
    _tile_zero(0);
    _tile_loadd(4, x, static_cast<long>(stride));
    _tile_loadd(6, weights, 64);
    _tile_dpbssd(0, 4, 6);
    _tile_stored(0, out, 64);
  } else {
    _tile_zero(1);
    _tile_loadd(5, x, static_cast<long>(stride));
    _tile_loadd(7, weights, 64);
    _tile_dpbssd(1, 5, 7);
    _tile_stored(1, out, 64);
  }
}

template <int kRows>
AGENTKV_INLINE void add_scaled(Vec (&sum)[kRows], const std::int32_t (*products)[16], const float* scales) {
  const Vec scale = load(scales);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    sum[r] = fma(__builtin_convertvector(load_as<IVec>(products[r]), Vec), scale, sum[r]);
  }
}

// Adds a piece's groups to sums [kRows][kPanel] of half a panel. Tiles work on one group while the one before is
// scaled.
template <int kGroup, int kRows>
void add_groups(const std::int8_t* x, std::size_t stride, const Piece& piece, int groups, int half, bool first,
                float* sums) {
  alignas(64) std::int32_t products[2][16][16];
  Vec sum[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) sum[r] = first ? Vec{} : load(sums + r * kPanel + half * 16);
  const std::int8_t* weights = piece.codes[half][0];
  const float* scales = piece.scales[0] + half * 16;
  tile_products<0>(x, stride, weights, products[0]);
  int g = 0;
  for (; g + 2 < groups; g += 2) {
    tile_products<1>(x + (g + 1) * kGroup, stride, weights + (g + 1) * kGroup * 16, products[1]);
    add_scaled(sum, products[0], scales + g * kPanel);
    tile_products<0>(x + (g + 2) * kGroup, stride, weights + (g + 2) * kGroup * 16, products[0]);
    add_scaled(sum, products[1], scales + (g + 1) * kPanel);
  }
  if (g + 1 < groups) {
    tile_products<1>(x + (g + 1) * kGroup, stride, weights + (g + 1) * kGroup * 16, products[1]);
    add_scaled(sum, products[0], scales + g * kPanel);
    add_scaled(sum, products[1], scales + (g + 1) * kPanel);
  } else {
    add_scaled(sum, products[0], scales + g * kPanel);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) store(sums + r * kPanel + half * 16, sum[r]);
}

// Rows of y lie far apart: unless they come while tiles work, each of them is waited for when it is written.
AGENTKV_INLINE void prefetch_outputs(const LinearArgs& a, int first, int row, int end) {
  const int stop = end - row < kRowBlock ? end : row + kRowBlock;
  for (; row < stop; ++row) {
    const float* y = output_row(a, row) + first;
    __builtin_prefetch(y, 1, 2);
    __builtin_prefetch(y + 16, 1, 2);
    __builtin_prefetch(y + kPanel - 1, 1, 2);
  }
}

// Rows [begin, end) and the panel from output `first` on, whose codes pass by in pieces.
template <int kGroup>
void tile_group_panel(const LinearArgs& a, const std::byte* panel, int first, int begin, int end, TileShapes& shapes) {
  constexpr int kPieceGroups = kPieceInputs / kGroup;
  Piece piece;
  const std::byte* at = panel + sizeof(float) * kPanel;
  const int all = a.inputs / kGroup;
  for (int g = 0; g < all; g += kPieceGroups, at += kPieceGroups * group_bytes<kGroup>()) {
    const int groups = all - g < kPieceGroups ? all - g : kPieceGroups;
    expand<kGroup>(at, groups, piece);
    settle_stores(&piece);
    for (int row = begin; row < end; row += kRowBlock) {
      const int rows = tile_rows(end - row);
      shapes.set(rows);
      if (g + kPieceGroups >= all) prefetch_outputs(a, first, row, end);
      const auto add = rows == 16 ? add_groups<kGroup, 16> : rows == 8 ? add_groups<kGroup, 8> : add_groups<kGroup, 4>;
      const std::int8_t* x = a.x.codes + static_cast<std::size_t>(row) * a.x.stride + g * kGroup;
      float* sums = a.scratch + (row - begin) * kPanel;
      for (int half = 0; half < 2; ++half) add(x, a.x.stride, piece, groups, half, g == 0, sums);
    }
  }
}

// Rows [row, row + 32) and one panel of bytes: four tiles of outputs, which stay where they are.
template <bool kTwoBlocks>
AGENTKV_INLINE void tile_bytes(const std::int8_t* x, std::size_t stride, const std::byte* weights, int inputs,
                               std::int32_t (*out)[kPanel]) {
  const auto row_stride = static_cast<long>(stride);
  const std::int8_t* below = x + kRowBlock * stride;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int k = 0; k < inputs; k += kInputs, weights += kInputs * kPanel) {
    prefetch_ahead<kInputs * kPanel>(weights);
    _tile_loadd(4, x + k, row_stride);
    _tile_loadd(6, weights, 4 * kPanel);
    _tile_loadd(7, weights + 64, 4 * kPanel);
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
    if constexpr (kTwoBlocks) {
      _tile_loadd(5, below + k, row_stride);
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    }
  }
  constexpr long kOutStride = kPanel * sizeof(std::int32_t);
  _tile_stored(0, out, kOutStride);
  _tile_stored(1, *out + 16, kOutStride);
  if constexpr (kTwoBlocks) {
    _tile_stored(2, out + kRowBlock, kOutStride);
    _tile_stored(3, out[kRowBlock] + 16, kOutStride);
  }
}

// As above, of rows [begin, end), up to the sums.
AGENTKV_INLINE void tile_byte_panel(const LinearArgs& a, const std::byte* panel, int first, int begin, int end,
                                    TileShapes& shapes) {
  const auto* scales = reinterpret_cast<const float*>(panel) + kPanel;
  const std::byte* weights = panel + 2 * sizeof(float) * kPanel;
  alignas(64) std::int32_t products[2 * kRowBlock][kPanel];
  for (int row = begin; row < end; row += 2 * kRowBlock) {
    const int rows = end - row < 2 * kRowBlock ? end - row : 2 * kRowBlock;
    const std::int8_t* x = a.x.codes + static_cast<std::size_t>(row) * a.x.stride;
    shapes.set(tile_rows(rows));
    prefetch_outputs(a, first, row, end);
    prefetch_outputs(a, first, row + kRowBlock, end);
    (rows > kRowBlock ? tile_bytes<true> : tile_bytes<false>)(x, a.x.stride, weights, a.inputs, products);
    for (int r = 0; r < rows; ++r) {
      const IVec offset = splat_int(128 * a.x.totals[row + r]);
      float* sums = a.scratch + (row - begin + r) * kPanel;
      for (int j = 0; j < kPanel; j += kWidth) {
        store(sums + j, __builtin_convertvector(load_as<IVec>(products[r] + j) - offset, Vec) * load(scales + j));
      }
    }
  }
}

// kGroup 0: bytes.
template <int kGroup>
void tile_panels(const LinearArgs& a) {
  TileShapes shapes(kGroup == 0 ? kInputs : kGroup);
  const std::byte* panel = a.panels;
  for (int first = 0; first < a.outputs; first += kPanel, panel += a.panel_bytes) {
    const auto* column = reinterpret_cast<const float*>(panel);
    const int n = a.outputs - first < kPanel ? a.outputs - first : kPanel;
    alignas(64) float bias[kPanel];
    load_bias(a.bias == nullptr ? nullptr : a.bias + first, n, bias);
    for (int begin = 0; begin < a.rows; begin += kScratchRows) {
      const int end = a.rows - begin < kScratchRows ? a.rows : begin + kScratchRows;
      if constexpr (kGroup == 0) {
        tile_byte_panel(a, panel, first, begin, end, shapes);
      } else {
        tile_group_panel<kGroup>(a, panel, first, begin, end, shapes);
      }
      for (int row = begin; row < end; ++row) {
        const float* sums = a.scratch + (row - begin) * kPanel;
        float* y = output_row(a, row) + first;
        for (int j = 0; j < n; j += kWidth) {
          finish_outputs(load(sums + j), load(column + j), a.x, row, load(bias + j), y + j, n - j);
        }
      }
    }
  }
}

}  // namespace
}  // namespace agentkv::cpu
