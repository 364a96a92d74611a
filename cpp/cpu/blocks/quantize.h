// Weights as blocks of GGUF's types, made of floats.
#pragma once

#include <cstddef>
#include <span>

#include "cpu/blocks/block_weight.h"
#include "cpu/heads_view.h"

namespace agentkv::cpu {

// What became of a weight: the squares of its errors, and of its numbers, summed.
struct QuantizationLoss {
  double lost = 0.0, whole = 0.0;
};

// numbers [outputs][inputs], F32, F16 or BF16 as `from` says -> out [outputs][block_row_bytes(shape)], blocks of
// `shape`'s type. `importance` [inputs] is what the square of an error at each input counts; empty: all the same. The
// bits depend on nothing else, neither on threads nor on the instruction set. Throws InvalidTensor for an invalid
// shape, a type that weights are not quantised to, lengths that do not fit the shape, and numbers that are not finite.
QuantizationLoss quantize_blocks(const BlockShape& shape, BlockType from, std::span<const std::byte> numbers,
                                 std::span<const float> importance, std::span<std::byte> out,
                                 const ParallelFor& parallel_for);

}  // namespace agentkv::cpu
