// Read-only views of pools, for attention.
#pragma once

#include <mlx/array.h>

#include <optional>

namespace agentkv::mlx {

namespace mx = ::mlx::core;

// value = scale * code + bias, per group of `group_size` neighbours of a row.
struct Affine {
  mx::array scales, biases;  // [1, n_kv_heads, len, head_dim / group_size]
  int group_size;
  int bits;
};

// The cells [0, len) of one pool. As long as one of these lives, the next write to the pool has to copy all of it.
struct CellsView {
  mx::array values;              // [1, n_kv_heads, len, head_dim], or uint32 codes where there is an `affine`
  std::optional<Affine> affine;  // of a quantised pool

  // [1, n_kv_heads, len, head_dim] of the given floating dtype; codes are multiplied out.
  mx::array dense(mx::Dtype dtype) const;
  // The same without codes.
  CellsView unpacked(mx::Dtype dtype) const { return {dense(dtype), std::nullopt}; }
  // The cells [first, len) of it, without a copy.
  CellsView from(int first) const;
  // The first `dim` numbers of each row, where there are no codes.
  CellsView first_numbers(int dim) const;
};

}  // namespace agentkv::mlx
