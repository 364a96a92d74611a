#include "core/run_list.h"

#include <algorithm>

namespace agentkv {

std::size_t find_run(std::span<const Run> runs, Pos position) {
  const auto it = std::partition_point(runs.begin(), runs.end(),
                                       [position](const Run& run) { return end_position(run) <= position; });
  return static_cast<std::size_t>(it - runs.begin());
}

std::span<const Run> overlapping(std::span<const Run> runs, Pos p0, Pos p1) {
  if (p0 >= p1) return {};
  const std::size_t begin = find_run(runs, p0);
  const auto end = std::partition_point(runs.begin() + static_cast<std::ptrdiff_t>(begin), runs.end(),
                                        [p1](const Run& run) { return run.position < p1; });
  return runs.subspan(begin, static_cast<std::size_t>(end - runs.begin()) - begin);
}

Run clip(const Run& run, Pos p0, Pos p1) {
  const Pos first = std::max(run.position, p0);
  const Pos last = std::min(end_position(run), p1);
  if (first >= last) return {run.position, run.cell, 0};
  return {first, run.cell + (first - run.position), last - first};
}

void reserve_more(RunList& runs, std::size_t extra) {
  const std::size_t needed = runs.size() + extra;
  if (runs.capacity() < needed) runs.reserve(std::max(needed, 2 * runs.capacity()));
}

}  // namespace agentkv
