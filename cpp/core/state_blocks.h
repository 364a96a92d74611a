// Where layers keep states: at the last cell of each block of kStateBlock positions. A row in a block goes on from the
// state behind the block before, and from what the cells since then keep.
#pragma once

#include <functional>
#include <span>

#include "core/step_plan.h"

namespace agentkv {

inline constexpr Pos kStateBlock = 64;
// Cells that a row may look at, its own first: those of its block, and the last one of the block before.
inline constexpr Pos kStateWindow = kStateBlock + 1;

inline bool ends_block(Pos position) { return (position + 1) % kStateBlock == 0; }

// A step's rows, and the cells that each of them looks at.
struct BlockRows {
  const StepPlan& plan;
  std::span<const Cell> recent;  // [T, kStateWindow]

  std::int32_t count() const { return plan.n_tokens(); }
  const Cell* seen(std::int32_t row) const { return recent.data() + row * kStateWindow; }
  Cell cell(std::int32_t row) const { return plan.write_cells[static_cast<std::size_t>(row)]; }
  Pos position(std::int32_t row) const { return plan.positions[static_cast<std::size_t>(row)]; }
  bool is_draft(std::int32_t row) const { return position(row) > plan.row_limit[static_cast<std::size_t>(row)]; }
  Pos inside(std::int32_t row) const { return position(row) % kStateBlock; }  // rows of its block before it
  Cell before(std::int32_t row) const { return seen(row)[inside(row) + 1]; }  // the end of the block before; -1: none

  // Throws InvalidStep unless what each row needs is there or comes before it in this step.
  void check(const std::function<bool(Cell)>& has_state) const;
};

}  // namespace agentkv
