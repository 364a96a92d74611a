#include "core/plan_builder.h"

#include <algorithm>

namespace agentkv {

PlanBuilder::PlanBuilder(StepPlan& plan) : plan_(plan) {
  const std::size_t n = plan.positions.size();
  plan.kind = StepPlan::Kind::Explicit;
  plan.write_cells.resize(n);
  plan.row_view.resize(n);
  plan.row_limit.resize(n);
  plan.view_offsets.assign(1, 0);
  plan.runs.clear();
  plan.tail_offsets.clear();
  plan.tails.clear();
}

void PlanBuilder::begin_view(std::span<const Run> held, std::size_t extra) {
  first_ = plan_.runs.size();
  reserve_more(plan_.runs, held.size() + extra);
  plan_.runs.insert(plan_.runs.end(), held.begin(), held.end());
  plan_.view_offsets.push_back(static_cast<std::int32_t>(plan_.runs.size()));
}

void PlanBuilder::extend_view(Run run) {
  append_run(plan_.runs, run, first_);
  plan_.view_offsets.back() = static_cast<std::int32_t>(plan_.runs.size());
}

void PlanBuilder::add_plain_row(std::int32_t row) {
  const auto i = static_cast<std::size_t>(row);
  extend_view({plan_.positions[i], plan_.write_cells[i], 1});
  plan_.row_view[i] = plan_.n_views() - 1;
  plan_.row_limit[i] = plan_.positions[i];
}

void PlanBuilder::add_node_row(std::int32_t row, Pos limit) {
  const auto i = static_cast<std::size_t>(row);
  plan_.row_view[i] = plan_.n_views() - 1;
  plan_.row_limit[i] = limit;
}

void PlanBuilder::add_tail(std::span<const Run> tail) {
  if (plan_.tail_offsets.empty()) plan_.tail_offsets.push_back(0);
  plan_.tails.insert(plan_.tails.end(), tail.begin(), tail.end());
  plan_.tail_offsets.push_back(static_cast<std::int32_t>(plan_.tails.size()));
}

void PlanBuilder::finish() {
  Cell read_len = 0;
  for (const Run& run : plan_.runs) read_len = std::max(read_len, run.cell + run.length);
  for (const Run& run : plan_.tails) read_len = std::max(read_len, run.cell + run.length);
  plan_.read_len = read_len;
  const bool contiguous = plan_.n_views() == 1 && plan_.tails.empty() && plan_.runs.size() == 1 &&
                          plan_.runs[0].position == plan_.runs[0].cell;
  plan_.kind = contiguous && plan_.runs[0].cell == 0 ? StepPlan::Kind::SingleContiguous : StepPlan::Kind::Explicit;
}

}  // namespace agentkv
