// Rows kept as affine codes of 8 or 4 bits.
#pragma once

#include "mlx/pool.h"

namespace agentkv::mlx {

// A row's bytes depend on that row alone: codes packed into uint32, and float16 scales and biases per group of 64
// (of 32 where 64 does not divide head_dim). Throws InvalidTensor for a head_dim that 32 does not divide either.
class QuantPool final : public Pool {
 public:
  QuantPool(int n_kv_heads, int head_dim, int bits);

  CellsView read(Cell len) const override;

 private:
  std::vector<mx::array> encode(const mx::array& rows) const override;

  int group_size_;
  int bits_;
};

}  // namespace agentkv::mlx
