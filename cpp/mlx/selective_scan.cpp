#include "mlx/selective_scan.h"

#include <mlx/ops.h>

namespace agentkv::mlx {
namespace {

mx::array rows_of(const mx::array& x) { return mx::squeeze(mx::astype(x, mx::float32), 0); }

}  // namespace

SelectiveScan::SelectiveScan(const LayerShape& shape, const ScanInputs& inputs)
    : shape_(shape),
      inputs_(inputs),
      rates_(mx::astype(inputs.rates, mx::float32)),
      x_(rows_of(inputs.x)),
      decay_(rows_of(inputs.decay)),
      b_(rows_of(inputs.b)),
      c_(rows_of(inputs.c)) {}

mx::array SelectiveScan::start() const { return mx::zeros({1, 1, shape_.k_dim, shape_.v_dim}, mx::float32); }

mx::array SelectiveScan::next(const mx::array& before, const mx::array& b, const mx::array& x,
                              const mx::array& decay) const {
  return mx::exp(decay * rates_) * before + mx::reshape(b, {shape_.k_dim, 1}) * x;
}

mx::array SelectiveScan::step(const mx::array& before, int row) {
  const mx::array state = next(before, mx::take(b_, row, 0), mx::take(x_, row, 0), mx::take(decay_, row, 0));
  outs_.push_back(mx::matmul(mx::reshape(mx::take(c_, row, 0), {1, 1, 1, shape_.k_dim}), state));
  return state;
}

mx::array SelectiveScan::again(const KeptRows& kept, const mx::array& before, int index) const {
  const mx::array value = mx::reshape(mx::take(kept.values, index, 2), {2, shape_.v_dim});
  return next(before, mx::take(kept.keys, index, 2), mx::take(value, 0, 0), mx::take(value, 1, 0));
}

KeptRows SelectiveScan::kept() const {
  const auto of_cells = [](const mx::array& rows) { return mx::expand_dims(rows, {0, 1}); };
  return {of_cells(b_), of_cells(mx::concatenate({x_, decay_}, 1))};
}

mx::array SelectiveScan::out() const {
  return mx::astype(mx::reshape(mx::stack(outs_), inputs_.x.shape()), inputs_.x.dtype());
}

}  // namespace agentkv::mlx
