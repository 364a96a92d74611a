// Short causal convolutions of the rows that a layer's cells hold.
#pragma once

#include <span>

#include "core/step_plan.h"
#include "cpu/heads_view.h"
#include "cpu/pool.h"

namespace agentkv::cpu {

struct Convolution {
  int width = 1;                   // of the newest inputs, a row's own among them
  std::span<const float> weights;  // [channels, width], the newest last
  std::span<const float> bias;     // [channels], or empty
};

// out [heads, T, dim] = each channel's weights times its last inputs, as far as the row sees them; channel h * dim + i
// is number i of head h. `inputs` are rows of floats of the same heads and dim. The bits of a row depend on those
// alone.
void convolve(const StepPlan& plan, const PoolView& inputs, const Convolution& convolution, MutableHeadsView out,
              const ParallelFor& parallel_for);

}  // namespace agentkv::cpu
