#include "mlx/attention.h"

#include <mlx/fast.h>
#include <mlx/ops.h>

#include <limits>

namespace agentkv::mlx {
namespace {

// x times the cells, or times their transpose, read as they are.
mx::array multiply(const mx::array& x, const CellsView& cells, bool transpose) {
  if (!cells.affine) {
    const mx::array values = mx::astype(cells.values, x.dtype());
    return mx::matmul(x, transpose ? mx::swapaxes(values, -1, -2) : values);
  }
  const Affine& affine = *cells.affine;
  return mx::quantized_matmul(x, cells.values, mx::astype(affine.scales, x.dtype()),
                              mx::astype(affine.biases, x.dtype()), transpose, affine.group_size, affine.bits);
}

// Products, scaled, as scores: [1, n_heads, T, len].
mx::array scored(mx::array products, const Scoring& scoring, const std::optional<mx::array>& mask,
                 const std::optional<mx::array>& distances) {
  const mx::Dtype dtype = products.dtype();
  if (scoring.cap > 0) {
    const mx::array cap(scoring.cap, dtype);
    products = cap * mx::tanh(products / cap);
  }
  if (scoring.slopes) {
    products = products + mx::reshape(mx::astype(*scoring.slopes, dtype), {1, products.shape(1), 1, 1}) * *distances;
  }
  if (!mask) return products;
  return mx::where(*mask, products, mx::array(-std::numeric_limits<float>::infinity(), dtype));
}

// softmax over the last dimension, of which sinks take their share.
mx::array weights_of(const mx::array& scores, const std::optional<mx::array>& sink_scores) {
  if (!sink_scores) return mx::softmax(scores, -1, true);
  const mx::Shape column = {1, scores.shape(1), scores.shape(2), 1};
  const mx::array sinks = mx::reshape(mx::astype(*sink_scores, scores.dtype()), {1, scores.shape(1), 1, 1});
  const mx::array all = mx::softmax(mx::concatenate({scores, mx::broadcast_to(sinks, column)}, -1), -1, true);
  return mx::slice(all, mx::Shape{0, 0, 0, 0}, scores.shape());
}

mx::array cells_from(const mx::array& cells, int first) {
  return mx::slice(cells, mx::Shape{0, 0, first, 0}, cells.shape());
}

}  // namespace

CellsView CellsView::from(int first) const {
  if (first == 0) return *this;
  CellsView view{cells_from(values, first), affine};
  if (affine) {
    view.affine->scales = cells_from(affine->scales, first);
    view.affine->biases = cells_from(affine->biases, first);
  }
  return view;
}

CellsView CellsView::first_numbers(int dim) const {
  mx::Shape end = values.shape();
  end.back() = dim;
  return {mx::slice(values, mx::Shape{0, 0, 0, 0}, end), std::nullopt};
}

mx::array CellsView::dense(mx::Dtype dtype) const {
  if (!affine) return mx::astype(values, dtype);
  return mx::dequantize(values, mx::astype(affine->scales, dtype), mx::astype(affine->biases, dtype),
                        affine->group_size, affine->bits);
}

mx::array attention(const mx::array& q, const CellsView& k, const CellsView& v, const Scoring& scoring,
                    Visibility visibility, const std::optional<mx::array>& mask) {
  const char* mode = visibility == Visibility::Causal ? "causal" : "";
  const auto sinks = scoring.sink_scores ? std::optional(mx::astype(*scoring.sink_scores, q.dtype())) : std::nullopt;
  return mx::fast::scaled_dot_product_attention(q, k.dense(q.dtype()), v.dense(q.dtype()), scoring.scale, mode, mask,
                                                sinks);
}

mx::array composed_attention(const mx::array& q, const CellsView& k, const CellsView& v, const Scoring& scoring,
                             const std::optional<mx::array>& mask, const std::optional<mx::array>& distances) {
  const int heads = q.shape(1), tokens = q.shape(2), dim = q.shape(3);
  const int kv_heads = k.values.shape(1), len = k.values.shape(2);
  const int rows = heads / kv_heads * tokens;  // the query heads of one K/V head are further rows of its product
  const mx::Dtype dtype = scoring.is_fused() ? q.dtype() : mx::float32;
  const mx::array queries =
      mx::reshape(mx::astype(q, dtype) * mx::array(scoring.scale, dtype), {1, kv_heads, rows, dim});
  const mx::array products = mx::reshape(multiply(queries, k, true), {1, heads, tokens, len});
  const mx::array weights = weights_of(scored(products, scoring, mask, distances), scoring.sink_scores);
  const mx::array sums = multiply(mx::reshape(weights, {1, kv_heads, rows, len}), v, false);
  return mx::astype(mx::reshape(sums, {1, heads, tokens, sums.shape(3)}), q.dtype());
}

}  // namespace agentkv::mlx
