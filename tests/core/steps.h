// Shorthand for the core tests.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "core/cache.h"

namespace agentkv::testing {

template <class Cells>
const StepPlan& plan(Cells& cells) {
  const auto positions = cells.step_positions();
  const std::vector<std::int64_t> fed(positions.begin(), positions.end());
  return cells.plan(fed, 0);
}

// One whole step; returns a copy of its plan.
template <class Cells>
StepPlan step(Cells& cells, const std::vector<SeqId>& seq_ids) {
  cells.begin_step(seq_ids);
  StepPlan out = plan(cells);
  cells.commit_step();
  return out;
}

inline std::vector<Run> runs_of(const SeqCache& cells, SeqId seq) {
  const auto runs = cells.seq_runs(seq);
  return {runs.begin(), runs.end()};
}

// The mask as one string per row: "##.." where the first two cells are visible.
inline std::vector<std::string> drawn(const StepPlan& plan, Pos window = 0, Pos sinks = 0) {
  const std::vector<std::uint8_t> mask = plan.mask(window, sinks);
  std::vector<std::string> rows;
  for (std::int32_t row = 0; row < plan.n_tokens(); ++row) {
    std::string text;
    for (Cell cell = 0; cell < plan.read_len; ++cell) text += mask[row * plan.read_len + cell] != 0 ? '#' : '.';
    rows.push_back(text);
  }
  return rows;
}

}  // namespace agentkv::testing
