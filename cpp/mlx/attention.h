// Attention of one step's rows over the cells of one layer.
#pragma once

#include <mlx/array.h>

#include <optional>

#include "mlx/cells_view.h"

namespace agentkv::mlx {

// Which of the cells that it is given a row sees, where no window says otherwise.
enum class Visibility {
  None,      // all of them: nothing is masked
  Causal,    // row i of T all but the last T - 1 - i
  Explicit,  // what a mask says
};

// softmax(scale * q K^T) V, lazy, of q's shape and dtype. q: [1, n_heads, T, head_dim], n_heads a multiple of K's.
// mask: bool [T, len], for Explicit.
mx::array attention(const mx::array& q, const CellsView& k, const CellsView& v, float scale, Visibility visibility,
                    const std::optional<mx::array>& mask);

// The same over quantised K and V without multiplying them out.
mx::array packed_attention(const mx::array& q, const CellsView& k, const CellsView& v, float scale,
                           const std::optional<mx::array>& mask);

}  // namespace agentkv::mlx
