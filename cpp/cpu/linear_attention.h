// Linear attention with decay (Mamba-2, Dao and Gu 2024; lightning attention, Qin et al. 2024), the gated delta rule
// (Yang et al. 2024) and gates for each number of a key (Kimi Linear, 2025).
//
// A state S [k_dim, v_dim] for each head of values goes from position to position:
//   S(t) = exp(decay(t)) S(t - 1) + k(t) u(t)^T,   out(t) = S(t)^T q(t) + skip v(t)
//   u(t) = beta(t) v(t), or by the delta rule beta(t) (v(t) - exp(decay(t)) S(t - 1)^T k(t))
// S is never kept for a position but at the end of a block of kStateBlock positions. In between, what a cell keeps is a
// row of k, the decays since the block began, and rows of u; a row's output comes from the state behind the last block
// and from the rows since then, as attention without a softmax. So cells are shared, cut and drafted upon as those of
// attention, and a state, once it is there, never changes.
#pragma once

#include <span>

#include "core/byte_layer.h"
#include "core/state_blocks.h"
#include "cpu/heads_view.h"
#include "cpu/pool.h"
#include "cpu/states.h"

namespace agentkv::cpu {

struct LinearAttentionArgs {
  HeadsView q, k;                    // [n_kv_heads, T, k_dim]
  HeadsView v;                       // [heads, T, v_dim]; v_heads neighbours share a head of keys
  HeadsView decay;                   // [1, T, heads], or [heads, T, k_dim] for each number of a key; at most 0
  HeadsView beta = {};               // [1, T, heads]; without data: ones
  bool corrects = false;             // the delta rule
  std::span<const float> skip = {};  // [heads], or empty: none
  MutableHeadsView out = {};         // [heads, T, v_dim]
};

// Numbers of a key's row in its pool: k, and the decays of what it fades with.
int linear_key_floats(const LayerShape& shape);

// Writes the rows' cells, which have no states, and computes `out`. keys: rows of linear_key_floats; values: rows of
// v_dim, of all heads; both float32. A row's bits depend on the rows that it sees and on nothing else. Throws
// InvalidStep, before anything is written, where a row does not see all positions before it as far as it must;
// OutOfMemory.
void linear_attention(const BlockRows& rows, const LayerShape& shape, Pool& keys, Pool& values, States& states,
                      const LinearAttentionArgs& args, const ParallelFor& parallel_for);

}  // namespace agentkv::cpu
