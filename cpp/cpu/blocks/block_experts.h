// Linear layers of a mixture of experts over weights in blocks.
#pragma once

#include <cstdint>
#include <span>

#include "cpu/blocks/block_weight.h"
#include "cpu/heads_view.h"

namespace agentkv::cpu {

// As expert_linear of cpu/linear/experts.h, over weights in blocks: experts are all of one shape [O, I] and type, rows
// are quantised to 8 bits in blocks where the weights are codes. The bits of a slot depend on its row and expert alone,
// and are those of block_linear. Throws InvalidTensor, before anything is written, for shapes that do not fit and for
// an expert that there is not.
void block_expert_linear(const HeadsView& x, std::span<const std::int64_t> chosen, std::span<const BlockWeight> experts,
                         std::span<const float> bias, const MutableHeadsView& y, const ParallelFor& parallel_for);

}  // namespace agentkv::cpu
