// Which of the cells that a step reads are visible to its rows.
#pragma once

#include <mlx/array.h>

#include <optional>

#include "core/byte_layer.h"
#include "core/step_plan.h"

namespace agentkv::mlx {

namespace mx = ::mlx::core;

struct VisibleCells {
  Cell first = 0;                 // no row sees a cell below it
  std::optional<mx::array> mask;  // bool [T, read_len - first]; none where every row sees all of those cells
};

// For a layer that looks so far back, see StepPlan::mask.
VisibleCells visible_cells(const StepPlan& plan, const Sight& sight);

// Of the cells from `first` on, the position of what each holds less that of each row: float32 [T, read_len - first],
// lazy. What it says of cells that a row does not see means nothing.
mx::array distances(const StepPlan& plan, Cell first);

}  // namespace agentkv::mlx
