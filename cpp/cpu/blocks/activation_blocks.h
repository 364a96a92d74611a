// Rows of activations as int8 codes in blocks, each with a scale of its own, as weights in blocks meet them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/blocks/block_weight.h"
#include "cpu/heads_view.h"
#include "cpu/kernels/block_table.h"

namespace agentkv::cpu {

class ActivationBlocks {
 public:
  // x [rows, inputs] float32, row r at x + r * stride (in floats), for weights of `type`, whose blocks have codes.
  // Keeps its memory for the next call. A block's codes follow from that block alone. One that has an infinity or a NaN
  // becomes NaN, which every output of its row then is; one whose range is below some 2^-92 becomes zeros. Throws
  // InvalidTensor.
  void assign(const float* x, int rows, int inputs, std::size_t stride, BlockType type,
              const ParallelFor& parallel_for);

  // As kernels read them.
  const ActivationCodes& view() const { return view_; }

 private:
  void make_room(int rows, int inputs, int block, int group);

  ActivationCodes view_{};
  std::vector<std::int8_t> codes_;
  std::vector<std::int16_t> sums_;
  std::vector<std::int32_t> bases_;
  std::vector<float> scales_;  // of each row and block, then the offsets
};

}  // namespace agentkv::cpu
