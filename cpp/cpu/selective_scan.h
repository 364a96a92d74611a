// The selective scan of Mamba (Gu and Dao 2023), and other recurrences of channels by themselves (RG-LRU; De et al.
// 2024): of each channel and each of its states
//   S(t) = e^(decay(t) rate) S(t - 1) + b(t) x(t),   out(t) = the sum over states of c(t) S(t)
// Cells keep x, decay and b; states are kept at the ends of blocks of kStateBlock positions, and at the last cell of
// what a sequence was fed, until the next is. Rows go on from the nearest state: since every state is made by the same
// steps in the same order, it has the same bits wherever one begins.
#pragma once

#include <span>

#include "core/byte_layer.h"
#include "core/state_blocks.h"
#include "cpu/heads_view.h"
#include "cpu/pool.h"
#include "cpu/states.h"

namespace agentkv::cpu {

struct ScanArgs {
  HeadsView x, decay;            // [1, T, channels]; decay times rates at most 0
  std::span<const float> rates;  // [states, channels]
  HeadsView b, c;                // [1, T, states]
  MutableHeadsView out;          // [1, T, channels]
};

// Writes the rows' cells, which have no states, and computes `out`. keys: rows of b; values: rows of x and, behind it,
// decay; both float32. A row's bits depend on the rows that it sees and on nothing else. Throws InvalidStep, before
// anything is written, where a row does not see all positions before it as far as it must; OutOfMemory.
void selective_scan(const BlockRows& rows, const LayerShape& shape, Pool& keys, Pool& values, States& states,
                    const ScanArgs& args, const ParallelFor& parallel_for);

}  // namespace agentkv::cpu
