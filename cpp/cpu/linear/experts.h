// Linear layers of a mixture of experts: every row meets the weights of its own few experts.
#pragma once

#include <cstdint>
#include <span>

#include "cpu/heads_view.h"
#include "cpu/linear/packed_linear.h"

namespace agentkv::cpu {

// y[t, i] = W[chosen[t, i]] x[t, i] + bias[chosen[t, i]], the weights all of one shape [O, I]; rows of x are quantised
// where the weights are integers.
// x [1, T, I], one row for all k choices, or [k, T, I]; chosen [T, k]; bias [experts, O], or empty; y [k, T, O] with
// its slots at equal distances. The bits of a slot depend on its row and expert alone. Throws InvalidTensor, before
// anything is written, for shapes that do not fit and for an expert that there is not.
void expert_linear(const HeadsView& x, std::span<const std::int64_t> chosen, std::span<const PackedLinear> experts,
                   std::span<const float> bias, const MutableHeadsView& y, const ParallelFor& parallel_for);

}  // namespace agentkv::cpu
