// How much of a product the registers hold at a time, and how far ahead of it memory is asked for.
#pragma once

#include "cpu/kernels/linear_dot.h"

namespace agentkv::cpu {
namespace {

constexpr int kVecs = kPanel / kWidth;
// What the registers hold the sums of.
constexpr int kStreamRows = kWidth == 16 ? 8 : 4;
// How far ahead memory is asked for, in bytes: some lines of it are always on their way, over the end of a page too.
constexpr std::size_t kAhead = 3072;
// The same for kRows rows that are streamed: where vectors are so wide that products take little time, twice as far,
// so that memory is read meanwhile. One or two rows of bytes do little else than read, which the machine's own
// prefetching is quicker at when left alone.
template <int kBits, int kRows>
constexpr std::size_t kStreamAhead = kWidth == 16 && (kBits < 8 || kRows > 2) ? 2 * kAhead : kAhead;
constexpr int at_most(int rows) { return rows < kStreamRows ? rows : kStreamRows; }

// Sums that the registers hold beside the weights they meet: two vectors of outputs for each of these rows.
constexpr int kFloatRows = kWidth == 16 ? 12 : 4;
constexpr int kFloatOutputs = 2 * kWidth;

template <std::size_t kBytes, std::size_t kDistance = kAhead>
AGENTKV_INLINE void prefetch_ahead(const std::byte* at) {
#pragma GCC unroll 32
  for (std::size_t i = 0; i < kBytes; i += 64) __builtin_prefetch(at + kDistance + i, 0, 2);
}

// Panels of LinearArgs or of BlockLinearArgs, one after another, a few rows at a time. Kernels are by the number of
// rows, from 1 on; one computes outputs [first, first + n) of rows from `row` on.
template <class Args>
void stream_panels(const Args& a, void (*const (&kernels)[8])(const Args&, const std::byte* panel, int row, int first,
                                                              int n, const float* bias)) {
  const std::byte* panel = a.panels;
  for (int first = 0; first < a.outputs; first += kPanel, panel += a.panel_bytes) {
    const int n = a.outputs - first < kPanel ? a.outputs - first : kPanel;
    alignas(64) float bias[kPanel];
    load_bias(a.bias == nullptr ? nullptr : a.bias + first, n, bias);
    for (int row = 0; row < a.rows; row += kStreamRows) {
      const int rows = a.rows - row < kStreamRows ? a.rows - row : kStreamRows;
      kernels[rows - 1](a, panel, row, first, n, bias);
    }
  }
}

}  // namespace
}  // namespace agentkv::cpu
