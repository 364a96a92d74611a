// Rows kept in a floating dtype.
#pragma once

#include "mlx/pool.h"

namespace agentkv::mlx {

// Rounds to nearest even. float16 saturates at +-65504, so that one outlier cannot turn a whole row into NaN; rows that
// are float16 already stay as they are.
mx::array to_storage(const mx::array& rows, mx::Dtype dtype);

class FPPool final : public Pool {
 public:
  FPPool(int n_kv_heads, int head_dim, mx::Dtype dtype);

  CellsView read(Cell len) const override;

 private:
  std::vector<mx::array> encode(const mx::array& rows) const override;

  mx::Dtype dtype_;
};

}  // namespace agentkv::mlx
