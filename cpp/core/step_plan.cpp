#include "core/step_plan.h"

#include <algorithm>

#include "core/errors.h"
#include "core/message.h"
#include "core/run_list.h"

namespace agentkv {
namespace {

void show(std::uint8_t* row, const Run& run, Pos p0, Pos p1) {
  const Run seen = clip(run, p0, p1);
  std::fill_n(row + seen.cell, seen.length, std::uint8_t{1});
}

}  // namespace

std::vector<std::uint8_t> StepPlan::mask(Pos window, Pos sinks, Pos chunk) const {
  if (window < 0 || sinks < 0 || chunk < 0) {
    throw InvalidRange(
        error_text("mask with window ", window, ", ", sinks, " sinks and chunks of ", chunk, "; none may be below 0"));
  }
  const auto width = static_cast<std::size_t>(read_len);
  std::vector<std::uint8_t> out(positions.size() * width, 0);
  for (std::int32_t row = 0; row < n_tokens(); ++row) {
    const auto i = static_cast<std::size_t>(row);
    std::uint8_t* seen = out.data() + i * width;
    const Pos from = chunk > 0 ? positions[i] - positions[i] % chunk : 0;
    const Pos first = std::max(from, window > 0 ? positions[i] - window + 1 : 0);
    const auto show_runs = [&](std::span<const Run> runs, Pos limit) {
      for (const Run& run : runs) {
        if (run.position > limit) break;
        show(seen, run, first, limit + 1);
        if (first > 0 && run.position < sinks) show(seen, run, from, std::min(sinks, limit + 1));
      }
    };
    show_runs(view(row_view[i]), row_limit[i]);
    show_runs(tail(row), positions[i]);
  }
  return out;
}

std::vector<Cell> StepPlan::recent_cells(Pos count) const {
  if (count < 1) throw InvalidRange(error_text("the cells of the last ", count, " positions: ask for one at least"));
  std::vector<Cell> out;
  out.reserve(positions.size() * static_cast<std::size_t>(count));
  for (std::int32_t row = 0; row < n_tokens(); ++row) {
    const auto i = static_cast<std::size_t>(row);
    for (Pos p = positions[i]; p > positions[i] - count; --p) {
      const auto held = p > row_limit[i] ? tail(row) : view(row_view[i]);
      const std::size_t at = p < 0 ? held.size() : find_run(held, p);
      const bool seen = at < held.size() && held[at].position <= p;
      out.push_back(seen ? held[at].cell + (p - held[at].position) : -1);
    }
  }
  return out;
}

std::vector<Pos> StepPlan::cell_positions() const {
  std::vector<Pos> out(static_cast<std::size_t>(read_len), 0);
  for (const auto* held : {&runs, &tails}) {
    for (const Run& run : *held) {
      for (Cell i = 0; i < run.length && run.cell + i < read_len; ++i) out[run.cell + i] = run.position + i;
    }
  }
  return out;
}

}  // namespace agentkv
