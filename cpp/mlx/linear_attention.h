// Linear attention with decay (Mamba-2, Dao and Gu 2024), the gated delta rule (Yang et al. 2024) and gates for each
// number of a key (Kimi Linear, 2025): a state S [k_dim, v_dim] for each head of values,
//   S(t) = exp(decay(t)) S(t - 1) + k(t) u(t)^T,   out(t) = S(t)^T q(t) + skip v(t)
//   u(t) = beta(t) v(t), or by the delta rule beta(t) (v(t) - exp(decay(t)) S(t - 1)^T k(t))
#pragma once

#include <mlx/array.h>

#include <optional>
#include <vector>

#include "core/byte_layer.h"
#include "mlx/recurrence.h"

namespace agentkv::mlx {

struct LinearInputs {
  mx::array q, k;                                 // [1, T, n_kv_heads, k_dim]
  mx::array v;                                    // [1, T, heads, v_dim]; v_heads neighbours share a head of keys
  mx::array decay;                                // [1, T, heads], or [1, T, heads, k_dim] for each number of a key
  std::optional<mx::array> beta = {}, skip = {};  // [1, T, heads]; [heads]
  bool corrects = false;                          // the delta rule
};

// Numbers of a key's row, its decays among them.
int linear_key_width(const LayerShape& shape);

// The rows of a step, from state to state. Cells keep k and decay of each head of keys, u of each head of values.
class LinearAttention {
 public:
  LinearAttention(const LayerShape& shape, const LinearInputs& inputs);

  mx::array start() const;
  mx::array step(const mx::array& before, int row);  // of rows in their order
  // Behind row `index` of what cells kept.
  mx::array again(const KeptRows& kept, const mx::array& before, int index) const;

  // Of all rows, once each was a step.
  KeptRows kept() const;
  mx::array out() const;  // [1, T, heads, v_dim] of v's dtype

 private:
  // [T, ...] of the numbers of one head of keys: [n_kv_heads, v_heads or 1, rows, columns] for each token.
  mx::array of_keys(const mx::array& x, int heads, int rows, int columns) const;
  mx::array fades(const mx::array& decay) const;

  LayerShape shape_;
  const LinearInputs& inputs_;
  int tokens_;
  mx::array q_, k_, v_, fades_;
  std::optional<mx::array> beta_;
  std::vector<mx::array> added_, outs_;  // u and S^T q of each row
};

}  // namespace agentkv::mlx
