#include "mlx/linear_attention.h"

#include <mlx/ops.h>

namespace agentkv::mlx {
namespace {

int decays_of(const LayerShape& shape) { return shape.kept == Kept::GatedLinear ? shape.k_dim : shape.v_heads; }

// x [1, heads, n, width] as [n, heads, ...].
mx::array by_row(const mx::array& x) { return mx::transpose(mx::squeeze(x, 0), {1, 0, 2}); }

mx::array numbers(const mx::array& x, int first, int end) {
  return mx::slice(x, mx::Shape{0, 0, first}, mx::Shape{x.shape(0), x.shape(1), end});
}

}  // namespace

int linear_key_width(const LayerShape& shape) { return shape.k_dim + decays_of(shape); }

LinearAttention::LinearAttention(const LayerShape& shape, const LinearInputs& inputs)
    : shape_(shape),
      inputs_(inputs),
      tokens_(inputs.k.shape(1)),
      q_(of_keys(inputs.q, 1, 1, shape.k_dim)),
      k_(of_keys(inputs.k, 1, shape.k_dim, 1)),
      v_(of_keys(inputs.v, shape.v_heads, 1, shape.v_dim)),
      fades_(fades(of_keys(inputs.decay, decays_of(shape), 1, 1))) {
  if (inputs.beta) beta_ = of_keys(*inputs.beta, shape.v_heads, 1, 1);
}

mx::array LinearAttention::of_keys(const mx::array& x, int heads, int rows, int columns) const {
  return mx::reshape(mx::astype(x, mx::float32), {-1, shape_.n_kv_heads, heads, rows, columns});
}

// decay: [n, n_kv_heads, decays, 1, 1].
mx::array LinearAttention::fades(const mx::array& decay) const {
  const mx::array left = mx::exp(decay);
  return shape_.kept == Kept::GatedLinear ? mx::swapaxes(left, 2, 3) : left;
}

mx::array LinearAttention::start() const {
  return mx::zeros({shape_.n_kv_heads, shape_.v_heads, shape_.k_dim, shape_.v_dim}, mx::float32);
}

mx::array LinearAttention::step(const mx::array& before, int row) {
  const mx::array k = mx::take(k_, row, 0), faded = mx::take(fades_, row, 0) * before;
  mx::array u = mx::take(v_, row, 0);
  if (inputs_.corrects) u = u - mx::matmul(mx::swapaxes(k, -1, -2), faded);
  if (beta_) u = mx::take(*beta_, row, 0) * u;
  const mx::array state = faded + k * u;
  added_.push_back(u);
  outs_.push_back(mx::matmul(mx::take(q_, row, 0), state));
  return state;
}

mx::array LinearAttention::again(const KeptRows& kept, const mx::array& before, int index) const {
  const mx::array at = mx::array({index}, {1}, mx::int32);
  const mx::array key = by_row(mx::take(kept.keys, at, 2)), u = by_row(mx::take(kept.values, at, 2));
  const mx::array k = of_keys(numbers(key, 0, shape_.k_dim), 1, shape_.k_dim, 1);
  const mx::array decay = of_keys(numbers(key, shape_.k_dim, key.shape(2)), decays_of(shape_), 1, 1);
  return mx::squeeze(fades(decay) * before + k * of_keys(u, shape_.v_heads, 1, shape_.v_dim), 0);
}

KeptRows LinearAttention::kept() const {
  const int heads = shape_.n_kv_heads;
  const mx::array k = mx::reshape(k_, {tokens_, heads, shape_.k_dim});
  const mx::array decay = mx::reshape(mx::astype(inputs_.decay, mx::float32), {tokens_, heads, decays_of(shape_)});
  const mx::array u = mx::reshape(mx::stack(added_), {tokens_, heads * shape_.v_heads, shape_.v_dim});
  const auto by_head = [](const mx::array& x) { return mx::expand_dims(mx::transpose(x, {1, 0, 2}), 0); };
  return {by_head(mx::concatenate({k, decay}, 2)), by_head(u)};
}

mx::array LinearAttention::out() const {
  mx::array out = mx::reshape(mx::stack(outs_), inputs_.v.shape());
  if (inputs_.skip) {
    const mx::array skip = mx::reshape(mx::astype(*inputs_.skip, mx::float32), {-1, 1});
    out = out + skip * mx::astype(inputs_.v, mx::float32);
  }
  return mx::astype(out, inputs_.v.dtype());
}

}  // namespace agentkv::mlx
