// Fills a StepPlan view by view. The plan's vectors keep their memory from step to step.
#pragma once

#include <cstdint>
#include <span>

#include "core/run_list.h"
#include "core/step_plan.h"

namespace agentkv {

class PlanBuilder {
 public:
  // Sizes the per-row vectors by plan.positions; write_cells is the caller's to fill before rows are added.
  explicit PlanBuilder(StepPlan& plan);

  // Opens the next view with what a sequence holds, and leaves room for its rows of this step.
  void begin_view(std::span<const Run> held, std::size_t extra);
  void extend_view(Run run);
  // A row that sees its view up to its own position; its cell joins the view.
  void add_plain_row(std::int32_t row);
  // A row that sees its view below its sequence's draft nodes; it needs a tail.
  void add_node_row(std::int32_t row, Pos limit);
  // Tails of all rows, in row order, after the views; or none at all.
  void add_tail(std::span<const Run> tail);
  // Read window and kind.
  void finish();

 private:
  StepPlan& plan_;
  std::size_t first_ = 0;  // of the open view's runs
};

}  // namespace agentkv
