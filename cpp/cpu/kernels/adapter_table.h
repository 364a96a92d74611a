// The interface between adapters and their kernel: plain data, see table.h.
//
// The arithmetic is part of the interface: on every instruction set with FMA, for any number of rows,
//   lane(l) = fma chain over i = 0, 1, ... of x[16 i + l] * A[16 i + l], from 0; x and A have zeros past the end
//   h       = the 16 lanes added in halves: l + 8, then + 4, + 2, + 1
//   y       = y + (fma chain over k = 0 .. rank - 1 of h[k] * B[k], from 0)
#pragma once

#include <cstddef>
#include <cstdint>

namespace agentkv::cpu {

inline constexpr int kAdapterLanes = 16;  // inputs of A are padded to a multiple of it, and outputs of B are
inline constexpr int kAdapterRanks = 4;   // rows of A are padded to a multiple of it
inline constexpr int kAdapterRows = 4;    // of a call, at most

// Outputs [first, first + outputs) of y take ranks [rank_begin, rank_begin + rank) of h.
struct AdapterPart {
  int first, outputs;
  int rank_begin, rank;
  std::size_t b;  // where its B begins: [outputs / kAdapterLanes][rank][kAdapterLanes]
};

struct AdapterArgs {
  const float* a;  // [ranks][padded]
  const float* b;
  int inputs, padded;
  int ranks;
  const AdapterPart* parts;
  int n_parts;
  const float* x;  // [..][x_stride]
  std::size_t x_stride;
  float* y;  // [..][y_stride]
  std::size_t y_stride;
  const std::int32_t* rows;  // [n_rows] which rows of x and y
  int n_rows;
  float* h;  // [n_rows][ranks]: room
};

struct AdapterKernelTable {
  void (*add)(const AdapterArgs&);
};

const AdapterKernelTable& adapter_kernels();

}  // namespace agentkv::cpu
