#include "mlx/quant_pool.h"

#include <mlx/ops.h>

#include "core/errors.h"
#include "core/message.h"
#include "mlx/fp_pool.h"

namespace agentkv::mlx {
namespace {

int group_size_of(int head_dim) {
  if (head_dim % 64 == 0) return 64;
  if (head_dim % 32 == 0) return 32;
  throw InvalidTensor(error_text("head_dim is ", head_dim, "; a quantised K/V cache needs a multiple of 32"));
}

}  // namespace

QuantPool::QuantPool(int n_kv_heads, int head_dim, int bits)
    : Pool(n_kv_heads), group_size_(group_size_of(head_dim)), bits_(bits) {
  add_plane("codes", head_dim * bits / 32, mx::uint32);
  add_plane("scales", head_dim / group_size_, mx::float16);
  add_plane("biases", head_dim / group_size_, mx::float16);
}

CellsView QuantPool::read(Cell len) const {
  return {first_cells(0, len), Affine{first_cells(1, len), first_cells(2, len), group_size_, bits_}};
}

std::vector<mx::array> QuantPool::encode(const mx::array& rows) const {
  // Codes are found for the scales as they are kept, in float16.
  return mx::quantize(to_storage(rows, mx::float16), group_size_, bits_);
}

}  // namespace agentkv::mlx
