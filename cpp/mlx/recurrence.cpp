#include "mlx/recurrence.h"

#include <algorithm>
#include <set>

namespace agentkv::mlx {

std::vector<StateRun> runs_of(const BlockRows& rows, const States& states) {
  rows.check([&](Cell cell) { return states.has(cell); });
  std::vector<StateRun> runs;
  std::set<Cell> written;  // by the rows before
  for (std::int32_t row = 0; row < rows.count(); written.insert(rows.cell(row++))) {
    const Cell* seen = rows.seen(row);
    if (row > 0 && rows.position(row) > 0 && seen[1] == rows.cell(row - 1)) {
      runs.back().end = row + 1;
      continue;
    }
    StateRun& run = runs.emplace_back(StateRun{row, row + 1, -1, {}});
    const Pos furthest = std::min(rows.position(row), rows.inside(row) + 1);
    for (Pos j = 1; j <= furthest && run.from < 0; ++j) {
      const bool has_state = states.has(seen[j]) || written.contains(seen[j]);
      if (has_state) run.from = seen[j];
      if (!has_state) run.again.push_back(seen[j]);
    }
    std::ranges::reverse(run.again);
  }
  return runs;
}

void run_states(const BlockRows& rows, const std::vector<StateRun>& runs, const Recurrence& recurrence,
                States& states) {
  std::set<Cell> begun_with;
  for (const StateRun& run : runs) begun_with.insert(run.from);
  // Drafts may be rejected: the row before them keeps its state.
  const auto is_last = [&](const StateRun& run, std::int32_t row) {
    return !rows.is_draft(row) && (row + 1 == run.end || rows.is_draft(row + 1));
  };
  int index = 0;
  for (const StateRun& run : runs) {
    mx::array state = run.from < 0 ? recurrence.start : states.at(run.from);
    for (std::size_t i = 0; i < run.again.size(); ++i) state = recurrence.again(state, index++);
    for (std::int32_t row = run.first; row < run.end; ++row) {
      state = recurrence.step(state, row);
      const Cell cell = rows.cell(row);
      if (ends_block(rows.position(row)) || is_last(run, row) || begun_with.contains(cell)) {
        states.put(cell, state, !ends_block(rows.position(row)));
      }
    }
  }
  for (const StateRun& run : runs) {  // what only the last row of a sequence had, or a draft for others
    const Pos from = rows.position(run.first) - static_cast<Pos>(run.again.size()) - 1;
    const bool from_draft = from > rows.plan.row_limit[static_cast<std::size_t>(run.first)];
    if (run.from < 0 || ends_block(from)) continue;
    if (from_draft || !rows.is_draft(run.first)) states.drop({&run.from, 1});
  }
}

}  // namespace agentkv::mlx
