// Operations on position-ordered run lists. A list is canonical: runs that continue each other are one run.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/api.h"
#include "core/types.h"

namespace agentkv {

using RunList = std::vector<Run>;

inline Pos end_position(const Run& run) { return run.position + run.length; }
inline Pos end_position(std::span<const Run> runs) { return runs.empty() ? 0 : end_position(runs.back()); }

// Appends a run that begins at or after the end of runs[first:], merging it with the last of them where it continues
// it.
inline void append_run(RunList& runs, Run run, std::size_t first = 0) {
  if (run.length == 0) return;
  if (runs.size() > first) {
    Run& last = runs.back();
    if (end_position(last) == run.position && last.cell + last.length == run.cell) {
      last.length += run.length;
      return;
    }
  }
  runs.push_back(run);
}

// Appends a canonical list that begins at or after the end of `runs`.
inline void append_runs(RunList& runs, std::span<const Run> more) {
  if (more.empty()) return;
  append_run(runs, more.front());
  runs.insert(runs.end(), more.begin() + 1, more.end());
}

// Index of the first run that ends after `position`: the one that holds it, or the next one.
AGENTKV_API std::size_t find_run(std::span<const Run> runs, Pos position);

// The runs that hold something in [p0, p1).
AGENTKV_API std::span<const Run> overlapping(std::span<const Run> runs, Pos p0, Pos p1);

// The part of a run with positions in [p0, p1); length 0 when there is none.
AGENTKV_API Run clip(const Run& run, Pos p0, Pos p1);

// Room for `extra` more runs, growing geometrically, so that later appends cannot throw.
AGENTKV_API void reserve_more(RunList& runs, std::size_t extra);

}  // namespace agentkv
