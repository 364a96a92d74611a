// Attention of one step's rows over the cells of one layer.
#pragma once

#include <mlx/array.h>

#include <optional>

#include "mlx/cells_view.h"

namespace agentkv::mlx {

// Which of the cells that it is given a row sees, where nothing narrows its sight.
enum class Visibility {
  None,      // all of them: nothing is masked
  Causal,    // row i of T all but the last T - 1 - i
  Explicit,  // what a mask says
};

// How products of queries and keys become scores.
struct Scoring {
  float scale = 1;
  float cap = 0;                              // a score becomes cap * tanh(score / cap) (Gemma 2, 2024); 0: none
  std::optional<mx::array> sink_scores = {};  // [n_heads] take weight and have no value (gpt-oss, 2025)
  std::optional<mx::array> slopes = {};       // [n_heads] times (position seen - row's): ALiBi (Press et al. 2021)

  // Whether MLX has one operation for it.
  bool is_fused() const { return cap == 0 && !slopes; }
};

// softmax(scores) V in one operation, lazy, [1, n_heads, T, v_dim] of q's dtype, for scoring that is_fused(). q: [1,
// n_heads, T, k_dim], n_heads a multiple of K's. mask: bool [T, len], for Explicit.
mx::array attention(const mx::array& q, const CellsView& k, const CellsView& v, const Scoring& scoring,
                    Visibility visibility, const std::optional<mx::array>& mask);

// The same in several, for any scoring, and over quantised K and V without multiplying them out. distances: float32 [T,
// len], for slopes. Scores that MLX has no operation for are float32.
mx::array composed_attention(const mx::array& q, const CellsView& k, const CellsView& v, const Scoring& scoring,
                             const std::optional<mx::array>& mask, const std::optional<mx::array>& distances);

}  // namespace agentkv::mlx
