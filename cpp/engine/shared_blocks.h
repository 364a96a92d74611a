// Blocks of a branch's older positions, and which of them others need as they are.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "core/run_list.h"

namespace agentkv {

// Of all whole blocks below `end`.
class SharedBlocks {
 public:
  static constexpr Pos kPositions = 64;

  explicit SharedBlocks(Pos end) : needed_(static_cast<std::size_t>(std::max(end, 0) / kPositions)) {}

  // The positions in [first, last).
  void mark(Pos first, Pos last) {
    for (Pos block = first / kPositions; block * kPositions < std::min(last, end()); ++block) {
      needed_[static_cast<std::size_t>(block)] = true;
    }
  }

  // The positions from `first` on at which another sequence has the cells that this one has.
  void mark(std::span<const Run> mine, std::span<const Run> others, Pos first) {
    for (const Run& run : overlapping(mine, first, end())) {
      const Run part = clip(run, first, end());
      for (const Run& other : overlapping(others, part.position, end_position(part))) {
        if (other.cell - other.position != part.cell - part.position) continue;
        mark(std::max(part.position, other.position), std::min(end_position(part), end_position(other)));
      }
    }
  }

  // Calls `visit` with each stretch of positions [first, last) that nobody needs.
  template <class Visit>
  void for_each_free(Visit&& visit) const {
    for (std::size_t block = 0; block < needed_.size(); ++block) {
      const std::size_t first = block;
      while (block < needed_.size() && !needed_[block]) ++block;
      if (first < block) visit(static_cast<Pos>(first) * kPositions, static_cast<Pos>(block) * kPositions);
    }
  }

 private:
  Pos end() const { return static_cast<Pos>(needed_.size()) * kPositions; }

  std::vector<bool> needed_;
};

}  // namespace agentkv
