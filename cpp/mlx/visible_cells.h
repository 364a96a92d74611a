// Which of the cells that a step reads are visible to its rows.
#pragma once

#include <mlx/array.h>

#include <optional>

#include "core/step_plan.h"

namespace agentkv::mlx {

namespace mx = ::mlx::core;

struct VisibleCells {
  Cell first = 0;                 // no row sees a cell below it
  std::optional<mx::array> mask;  // bool [T, read_len - first]; none where every row sees all of those cells
};

// For a layer with that window, see StepPlan::mask.
VisibleCells visible_cells(const StepPlan& plan, Pos window, Pos sinks);

}  // namespace agentkv::mlx
