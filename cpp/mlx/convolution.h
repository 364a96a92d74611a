// Short causal convolutions of the rows that a layer's cells hold.
#pragma once

#include <mlx/array.h>

#include <optional>

#include "core/step_plan.h"
#include "mlx/cells_view.h"

namespace agentkv::mlx {

struct Convolution {
  mx::array weight;               // [channels, 1, width], the newest input last
  std::optional<mx::array> bias;  // [channels]
};

// [1, T, channels], float32 and lazy: each channel's weights times its last inputs, as far as the row sees them.
// Channel h * dim + i is number i of head h of `inputs`.
mx::array convolve(const StepPlan& plan, const CellsView& inputs, const Convolution& convolution);

}  // namespace agentkv::mlx
