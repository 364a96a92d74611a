#include "core/seq_cells.h"

#include "core/plan_builder.h"

namespace agentkv {

void SeqCells::clear() {
  step_.check_closed("clear");
  table_.clear();
}

void SeqCells::begin_step(std::span<const SeqId> seq_ids) {
  step_.check_closed("begin_step");
  for (const SeqId seq : seq_ids) table_.check_id(seq);
  const auto n = static_cast<std::int64_t>(seq_ids.size());
  check_step_size(n, table_.pool().free(), capacity());
  rows_.assign(seq_ids);
  plan_.positions.resize(seq_ids.size());
  for (std::int32_t group = 0; group < rows_.n_groups(); ++group) {
    const auto rows = rows_.rows(group);
    Pos position = table_.length(rows_.sequence(group));
    check_step_positions(position, static_cast<std::int64_t>(rows.size()));
    for (const std::int32_t row : rows) plan_.positions[static_cast<std::size_t>(row)] = position++;
  }
  step_.begin();
}

const StepPlan& SeqCells::plan(std::span<const std::int64_t> position) {
  step_.check_fed(position, plan_.positions);
  if (!step_.planned()) {
    build_plan();
    step_.set_planned();
  }
  return plan_;
}

void SeqCells::build_plan() {
  PlanBuilder builder(plan_);
  table_.pool().lowest_free(plan_.write_cells);
  for (std::int32_t group = 0; group < rows_.n_groups(); ++group) {
    const SeqId seq = rows_.sequence(group);
    const auto rows = rows_.rows(group);
    table_.reserve(seq, rows.size());
    builder.begin_view(table_.runs(seq), rows.size());
    for (const std::int32_t row : rows) builder.add_plain_row(row);
  }
  builder.finish();
}

void SeqCells::commit_step() {
  step_.check_can_commit();
  for (std::int32_t group = 0; group < rows_.n_groups(); ++group) {
    for (const std::int32_t row : rows_.rows(group)) {
      const auto i = static_cast<std::size_t>(row);
      table_.append(rows_.sequence(group), plan_.positions[i], plan_.write_cells[i]);
    }
  }
  step_.end();
}

void SeqCells::seq_cp(SeqId src, SeqId dst, Pos p0, Pos p1) {
  step_.check_closed("seq_cp");
  table_.copy(src, dst, p0, p1);
}

void SeqCells::seq_rm(SeqId seq, Pos p0, Pos p1) {
  step_.check_closed("seq_rm");
  table_.remove(seq, p0, p1);
}

void SeqCells::seq_keep(SeqId seq) {
  step_.check_closed("seq_keep");
  table_.keep(seq);
}

}  // namespace agentkv
