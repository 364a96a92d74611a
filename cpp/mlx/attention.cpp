#include "mlx/attention.h"

#include <mlx/fast.h>
#include <mlx/ops.h>

#include <limits>

namespace agentkv::mlx {
namespace {

// x times the cells, or times their transpose, read as they are.
mx::array multiply(const mx::array& x, const CellsView& cells, bool transpose) {
  const Affine& affine = *cells.affine;
  return mx::quantized_matmul(x, cells.values, mx::astype(affine.scales, x.dtype()),
                              mx::astype(affine.biases, x.dtype()), transpose, affine.group_size, affine.bits);
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

mx::array CellsView::dense(mx::Dtype dtype) const {
  if (!affine) return mx::astype(values, dtype);
  return mx::dequantize(values, mx::astype(affine->scales, dtype), mx::astype(affine->biases, dtype),
                        affine->group_size, affine->bits);
}

mx::array attention(const mx::array& q, const CellsView& k, const CellsView& v, float scale, Visibility visibility,
                    const std::optional<mx::array>& mask) {
  const char* mode = visibility == Visibility::Causal ? "causal" : "";
  return mx::fast::scaled_dot_product_attention(q, k.dense(q.dtype()), v.dense(q.dtype()), scale, mode, mask);
}

mx::array packed_attention(const mx::array& q, const CellsView& k, const CellsView& v, float scale,
                           const std::optional<mx::array>& mask) {
  const int heads = q.shape(1), tokens = q.shape(2), dim = q.shape(3);
  const int kv_heads = k.values.shape(1), len = k.values.shape(2);
  const int group = heads / kv_heads;
  // The query heads of one K/V head are further rows of its product.
  const mx::array rows = mx::reshape(q * mx::array(scale, q.dtype()), {1, kv_heads, group * tokens, dim});
  mx::array scores = multiply(rows, k, true);
  if (mask) {
    const mx::array hidden(-std::numeric_limits<float>::infinity(), q.dtype());
    const mx::array by_token = mx::reshape(scores, {1, kv_heads, group, tokens, len});
    scores = mx::reshape(mx::where(*mask, by_token, hidden), scores.shape());
  }
  return mx::reshape(multiply(mx::softmax(scores, -1, true), v, false), q.shape());
}

}  // namespace agentkv::mlx
