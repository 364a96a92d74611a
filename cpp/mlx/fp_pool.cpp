#include "mlx/fp_pool.h"

#include <mlx/ops.h>

namespace agentkv::mlx {

mx::array to_storage(const mx::array& rows, mx::Dtype dtype) {
  if (dtype != mx::float16 || rows.dtype() == dtype) return mx::astype(rows, dtype);
  constexpr float largest = 65504.0f;
  return mx::astype(mx::clip(rows, mx::array(-largest, rows.dtype()), mx::array(largest, rows.dtype())), dtype);
}

FPPool::FPPool(int n_kv_heads, int head_dim, mx::Dtype dtype) : Pool(n_kv_heads), dtype_(dtype) {
  add_plane("", head_dim, dtype);
}

CellsView FPPool::read(Cell len) const { return {first_cells(0, len), std::nullopt}; }

std::vector<mx::array> FPPool::encode(const mx::array& rows) const { return {to_storage(rows, dtype_)}; }

}  // namespace agentkv::mlx
