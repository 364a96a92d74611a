// The steps of Cells: rows to positions, a plan, and what a commit publishes.
#include "core/cells.h"
#include "core/errors.h"
#include "core/message.h"

namespace agentkv {

void Cells::check_rows(SeqId seq, std::int32_t rows) const {
  const Frontier& nodes = frontier(seq);
  const std::int32_t plain = rows - nodes.proposed();
  if (plain < 0) {
    throw InvalidStep(error_text("a step with ", rows, " rows of sequence ", seq, ", which has ", nodes.proposed(),
                                 " proposed nodes; it must have a row for each"));
  }
  if (plain > 0 && nodes.live() > 0) {
    throw InvalidStep(error_text("a step with ", plain, " plain rows of sequence ", seq, ", which has a frontier of ",
                                 nodes.live(), " nodes; commit it first"));
  }
  check_step_positions(table_.length(seq), static_cast<std::int64_t>(rows) + nodes.live());
}

void Cells::begin_step(std::span<const SeqId> seq_ids) {
  step_.check_closed("begin_step");
  for (const SeqId seq : seq_ids) table_.check_id(seq);
  check_step_size(static_cast<std::int64_t>(seq_ids.size()), available(), capacity());
  rows_.assign(seq_ids);
  plan_.positions.resize(seq_ids.size());
  for (std::int32_t group = 0; group < rows_.n_groups(); ++group) {
    const SeqId seq = rows_.sequence(group);
    const auto rows = rows_.rows(group);
    check_rows(seq, static_cast<std::int32_t>(rows.size()));
    const Frontier& nodes = frontier(seq);
    const auto plain = static_cast<std::size_t>(plain_rows(group));
    Pos position = table_.length(seq);
    for (const std::int32_t row : rows.first(plain)) plan_.positions[static_cast<std::size_t>(row)] = position++;
    std::int32_t node = nodes.live();
    for (const std::int32_t row : rows.subspan(plain)) {
      plan_.positions[static_cast<std::size_t>(row)] = position + nodes.depth(node++);
    }
  }
  step_.begin();
}

std::int32_t Cells::plain_rows(std::int32_t group) const {
  return static_cast<std::int32_t>(rows_.rows(group).size()) - frontier(rows_.sequence(group)).proposed();
}

Cell Cells::cell_of(std::int32_t group, std::int32_t node) const {
  const Frontier& nodes = frontier(rows_.sequence(group));
  if (node < nodes.live()) return nodes.cells()[static_cast<std::size_t>(node)];
  const auto row = rows_.rows(group)[static_cast<std::size_t>(plain_rows(group) + node - nodes.live())];
  return plan_.write_cells[static_cast<std::size_t>(row)];
}

const StepPlan& Cells::plan(std::span<const std::int64_t> position, int) {
  step_.check_fed(position, plan_.positions);
  if (!step_.planned()) {
    build_plan();
    step_.set_planned();
  }
  return plan_;
}

void Cells::build_plan() {
  PlanBuilder builder(plan_);
  make_room(static_cast<Cell>(plan_.write_cells.size()));
  table_.pool().lowest_free(plan_.write_cells);
  row_nodes_.clear();
  for (std::int32_t group = 0; group < rows_.n_groups(); ++group) build_view(builder, group);
  if (!row_nodes_.empty()) build_tails(builder);
  builder.finish();
}

void Cells::build_view(PlanBuilder& builder, std::int32_t group) {
  const SeqId seq = rows_.sequence(group);
  const auto rows = rows_.rows(group);
  const Frontier& nodes = frontier(seq);
  const auto plain = static_cast<std::size_t>(plain_rows(group));
  table_.reserve(seq, rows.size());
  builder.begin_view(table_.runs(seq), rows.size() + static_cast<std::size_t>(nodes.live()));
  for (const std::int32_t row : rows.first(plain)) builder.add_plain_row(row);
  const Pos base = table_.length(seq) + static_cast<Pos>(plain);
  if (nodes.is_path()) {
    for (std::int32_t node = 0; node < nodes.live(); ++node) {
      builder.extend_view({base + node, cell_of(group, node), 1});
    }
    for (const std::int32_t row : rows.subspan(plain)) builder.add_plain_row(row);
    return;
  }
  if (row_nodes_.empty()) row_nodes_.resize(plan_.positions.size());
  std::int32_t node = nodes.live();
  for (const std::int32_t row : rows.subspan(plain)) {
    builder.add_node_row(row, base - 1);
    row_nodes_[static_cast<std::size_t>(row)] = {group, node++};
  }
}

void Cells::build_tails(PlanBuilder& builder) {
  for (const RowNode& row : row_nodes_) {
    tail_.clear();
    if (row.node >= 0) {
      const SeqId seq = rows_.sequence(row.group);
      const Pos base = table_.length(seq) + plain_rows(row.group);
      frontier(seq).append_chain(row.node, base, [&](std::int32_t node) { return cell_of(row.group, node); }, tail_);
    }
    builder.add_tail(tail_);
  }
}

void Cells::commit_step() {
  step_.check_can_commit();
  for (std::int32_t group = 0; group < rows_.n_groups(); ++group) {
    const SeqId seq = rows_.sequence(group);
    auto plain = plain_rows(group);
    for (const std::int32_t row : rows_.rows(group)) {
      const auto i = static_cast<std::size_t>(row);
      if (plain > 0) {
        table_.append(seq, plan_.positions[i], plan_.write_cells[i]);
        --plain;
      } else {
        table_.take(plan_.write_cells[i]);
        frontier(seq).add_cell(plan_.write_cells[i]);
      }
    }
  }
  step_.end();
}

void Cells::abort_step() noexcept {
  for (Frontier& frontier : frontiers_) frontier.withdraw();
  step_.end();
}

std::span<const Pos> Cells::step_positions() const {
  return step_.open() ? std::span<const Pos>(plan_.positions) : std::span<const Pos>();
}

}  // namespace agentkv
