// Linear attention with decay (Mamba-2, Dao and Gu 2024) and the gated delta rule (Yang et al. 2024).
//
// A state S [k_dim, v_dim] for each head goes from position to position:
//   S(t) = exp(decay(t)) S(t - 1) + k(t) u(t)^T,   out(t) = S(t)^T q(t)
//   u(t) = v(t), or by the delta rule beta(t) (v(t) - exp(decay(t)) S(t - 1)^T k(t))
// S is never kept for a position but at the end of a block of kStateBlock positions. In between, what a cell keeps is a
// row of k, the decay since the block began, and a row of u; a row's output comes from the state behind the last block
// and from the rows since then, as attention without a softmax. So cells are shared, cut and drafted upon as those of
// attention, and a state, once it is there, never changes.
#pragma once

#include "core/step_plan.h"
#include "cpu/heads_view.h"
#include "cpu/pool.h"
#include "cpu/states.h"

namespace agentkv::cpu {

inline constexpr Pos kStateBlock = 64;
// Behind k in its row: the decay, and padding.
inline constexpr int kDecayFloats = 8;

struct LinearAttentionArgs {
  HeadsView q, k, v;      // [heads, T, k_dim], twice, and [heads, T, v_dim]
  HeadsView decay, beta;  // [1, T, heads]; beta without data: no delta rule
  MutableHeadsView out;   // [heads, T, v_dim]
};

// Writes the plan's cells, which have no states, and computes `out`. keys: rows of k_dim + kDecayFloats; values: rows
// of v_dim; both float32. A row's bits depend on the rows that it sees and on nothing else. Throws InvalidStep, before
// anything is written, where a row does not see all positions before it as far as it must; OutOfMemory.
void linear_attention(const StepPlan& plan, Pool& keys, Pool& values, States& states, const LinearAttentionArgs& args,
                      const ParallelFor& parallel_for);

}  // namespace agentkv::cpu
