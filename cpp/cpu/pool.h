// One layer's K or V: rows [n_kv_heads, cells, head_dim].
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/byte_layer.h"
#include "core/types.h"
#include "cpu/dtype.h"
#include "cpu/heads_view.h"
#include "cpu/row_array.h"

namespace agentkv::cpu {

// A pool as kernels read it: row (head, cell) starts at data + head * head_stride + cell * row_bytes, and where rows
// are codes its scale is scales[head * scale_stride + cell].
struct PoolView {
  const std::byte* data = nullptr;
  std::size_t row_bytes = 0;
  std::size_t head_stride = 0;  // bytes
  KvDtype dtype = KvDtype::Fp32;
  const float* scales = nullptr;
  std::size_t scale_stride = 0;  // floats
};

// One array of rows, or two side by side ("planes"): the codes of quantised rows and their scales.
class Pool {
 public:
  Pool(int n_kv_heads, int head_dim, KvDtype dtype, Cell capacity, Cell min_chunk);

  // As of RowArray: room for `cells` cells, and back.
  void reserve(Cell cells);
  void shrink(Cell cells) noexcept;
  // As of RowArray, of the lanes of all planes: how many rows of K or V, without their scales, are mapped.
  Cell map(Cell first, Cell count, const FileLanes& file);
  void will_write(std::span<const Cell> cells) noexcept;
  // Stores row `token` of `rows` for each head into `cell`, rounding to nearest even. fp16 saturates at +-65504, so
  // that one outlier cannot turn a whole row into NaN. What int8 and int4 keep: kernels/codes.h.
  void write(const HeadsView& rows, std::int32_t token, Cell cell);
  // Row i goes from src[i] to dst[i] as if all were read before any is written. The cells must be allocated.
  void move(const Cell* src, const Cell* dst, std::size_t n);

  // What another pool of the same shape has in a cell, in this pool's dtype.
  void convert(const Pool& other, Cell cell);
  // The memory of rows [first, end), which hold nothing of worth, as of RowArray.
  void discard(Cell first, Cell end);

  // One cell's rows of all heads, cell_bytes() in all.
  void read(Cell cell, std::byte* out) const;
  // The same as a pool of `other`'s kind keeps it.
  void read_as(const Pool& other, Cell cell, std::byte* out) const;
  void restore(Cell cell, const std::byte* in);

  // One head's row of a cell that has memory.
  std::byte* row(int head, Cell cell) { return planes_.front().row(head, cell); }

  bool is_mapped(Cell cell) const { return planes_.front().is_mapped(cell); }
  Cell cells() const;  // that have memory
  std::size_t cell_bytes() const;
  void describe(const std::string& name, std::vector<CellArray>& arrays) const;  // what a cell's bytes are
  std::size_t bytes() const;
  std::size_t mapped_bytes() const;
  std::size_t lanes() const { return planes_.size() * static_cast<std::size_t>(n_kv_heads_); }
  std::size_t lane_row_bytes(std::size_t lane) const {
    return planes_[lane / static_cast<std::size_t>(n_kv_heads_)].row_bytes();
  }
  PoolView view() const;

 private:
  void store(const float* row, int head, Cell cell);
  void load(int head, Cell cell, float* row) const;  // [padded_dim(head_dim)]

  int n_kv_heads_;
  int head_dim_;
  KvDtype dtype_;
  std::vector<RowArray> planes_;  // rows, then scales
};

}  // namespace agentkv::cpu
