// One layer's K or V: [n_kv_heads, cells, head_dim] in one flat buffer that grows by doubling.
#pragma once

#include <cstddef>
#include <memory>

#include "core/types.h"
#include "cpu/dtype.h"
#include "cpu/heads_view.h"

namespace agentkv::cpu {

// A pool as kernels read it: row (head, cell) starts at data + head * head_stride + cell * row_bytes.
struct PoolView {
  const std::byte* data = nullptr;
  std::size_t row_bytes = 0;
  std::size_t head_stride = 0;  // bytes
  KvDtype dtype = KvDtype::Fp32;
};

class Pool {
 public:
  Pool(int n_kv_heads, int head_dim, KvDtype dtype);

  // Makes room for `cells` cells, keeping what is there: doubles from min_chunk, never beyond capacity.
  // Throws CacheFull when cells > capacity, std::bad_alloc when memory ends; unchanged then.
  void reserve(Cell cells, Cell min_chunk, Cell capacity);
  // Stores row `token` of `rows` for each head into `cell`, rounding to nearest even. fp16 saturates at +-65504, so
  // that one outlier cannot turn a whole row into NaN.
  void write(const HeadsView& rows, std::int32_t token, Cell cell);
  // Row i goes from src[i] to dst[i] as if all were read before any is written. The cells must be allocated.
  void move(const Cell* src, const Cell* dst, std::size_t n);

  // One cell's rows of all heads, cell_bytes() in all.
  void read(Cell cell, std::byte* out) const;
  void restore(Cell cell, const std::byte* in);

  Cell cells() const { return cells_; }
  std::size_t cell_bytes() const { return row_bytes_ * static_cast<std::size_t>(n_kv_heads_); }
  std::size_t bytes() const { return head_stride() * static_cast<std::size_t>(n_kv_heads_); }
  PoolView view() const { return {data_.get(), row_bytes_, head_stride(), dtype_}; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::size_t head_stride() const { return static_cast<std::size_t>(cells_) * row_bytes_; }

  int n_kv_heads_;
  int head_dim_;
  KvDtype dtype_;
  std::size_t row_bytes_;
  Cell cells_ = 0;
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace agentkv::cpu
