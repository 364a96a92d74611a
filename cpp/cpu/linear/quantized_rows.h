// Rows of activations as int8 codes, each with a scale and a zero of its own: made once, for all the linear layers that
// take them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu/heads_view.h"
#include "cpu/kernels/linear_table.h"

namespace agentkv::cpu {

class QuantizedRows {
 public:
  // x [rows, inputs] float32, row r at x + r * stride (in floats). Keeps its memory for the next call. A row's codes
  // follow from that row alone. One that has an infinity or a NaN becomes NaN, which every output of it then is; one
  // whose range is below some 2^-92 becomes zeros.
  void assign(const float* x, int rows, int inputs, std::size_t stride, const ParallelFor& parallel_for);

  // Rows of another, of which each may come never or several times.
  void pick(const QuantizedRows& from, std::span<const std::int32_t> rows);

  int rows() const { return rows_; }
  int inputs() const { return inputs_; }
  // As kernels read them.
  const RowCodes& view() const { return view_; }

 private:
  void make_room(int rows, int inputs);

  int rows_ = 0, inputs_ = 0;
  RowCodes view_{};
  std::vector<std::int8_t> codes_;
  std::vector<std::int32_t> sums_;  // of each row, then the totals
  std::vector<float> scales_, zeros_;
};

}  // namespace agentkv::cpu
