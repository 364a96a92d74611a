#include "engine/coverage.h"

#include <algorithm>

namespace agentkv {

// The first position from p on that rows from `length` on look at.
Pos Coverage::next_seen(Pos p, Pos length) const {
  for (Pos from = -1; from != p;) {
    from = p;
    if (window_.length > 0 && p >= window_.sinks) p = std::max(p, length - window_.length + 1);
    for (const Forgotten& gone : branch_.forgotten) {
      if (gone.since() <= length && gone.first <= p && p < gone.last) p = gone.last;
    }
  }
  return p;
}

Pos Coverage::first_missing(Pos length) const {
  for (Pos p = next_seen(0, length); p < length; p = next_seen(p, length)) {
    if (window_.sinks <= p && p < branch_.exact_from) return p;
    const std::size_t at = find_run(runs_, p);
    if (at == runs_.size() || runs_[at].position > p) return p;
    const Pos end = end_position(runs_[at]);
    p = p < window_.sinks ? std::min(end, window_.sinks) : end;
  }
  return first_lacking(length);
}

Pos Coverage::first_lacking(Pos length) const {
  for (std::size_t group = window_.groups.size(); group-- > 0;) {
    const Pos first = std::max(length - window_.groups[group] + 1, 0);
    for (const Run& run : overlapping(runs_, first, length)) {
      const Run part = clip(run, first, length);
      for (Cell i = 0; i < part.length; ++i) {
        if (lacks_[static_cast<std::size_t>(part.cell + i)] > group) return part.position + i;
      }
    }
  }
  return length;
}

Pos Coverage::covered(Pos length) const {
  for (;;) {
    const Pos missing = first_missing(length);
    if (missing == length) return length;
    length = missing;
  }
}

}  // namespace agentkv
