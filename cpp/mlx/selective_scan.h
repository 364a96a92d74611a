// The selective scan of Mamba (Gu and Dao 2023), and other recurrences of channels by themselves (RG-LRU; De et al.
// 2024): of each channel and each of its states
//   S(t) = e^(decay(t) rate) S(t - 1) + b(t) x(t),   out(t) = the sum over states of c(t) S(t)
#pragma once

#include <mlx/array.h>

#include <vector>

#include "core/byte_layer.h"
#include "mlx/recurrence.h"

namespace agentkv::mlx {

struct ScanInputs {
  mx::array x, decay;  // [1, T, channels]
  mx::array rates;     // [states, channels]
  mx::array b, c;      // [1, T, states]
};

// The rows of a step, from state to state. Cells keep b as keys; x and, behind it, decay as values.
class SelectiveScan {
 public:
  SelectiveScan(const LayerShape& shape, const ScanInputs& inputs);

  mx::array start() const;
  mx::array step(const mx::array& before, int row);  // of rows in their order
  // Behind row `index` of what cells kept.
  mx::array again(const KeptRows& kept, const mx::array& before, int index) const;

  KeptRows kept() const;  // of all rows
  mx::array out() const;  // [1, T, channels] of x's dtype, once each row was a step

 private:
  mx::array next(const mx::array& before, const mx::array& b, const mx::array& x, const mx::array& decay) const;

  LayerShape shape_;
  const ScanInputs& inputs_;
  mx::array rates_;              // [states, channels]
  mx::array x_, decay_, b_, c_;  // [T, ...]
  std::vector<mx::array> outs_;  // of each row
};

}  // namespace agentkv::mlx
