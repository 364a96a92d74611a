// Which cells are free, and how many sequences own each of the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/types.h"

namespace agentkv {

class CellPool {
 public:
  explicit CellPool(Cell capacity);

  Cell capacity() const { return static_cast<Cell>(owners_.size()); }
  Cell used() const { return used_; }
  Cell free() const { return capacity() - used_; }
  Cell shared() const { return shared_; }  // cells with two owners or more
  Cell window() const;                     // one past the highest owned cell
  std::uint16_t owners(Cell cell) const { return owners_[static_cast<std::size_t>(cell)]; }
  bool is_free(Cell cell) const { return owners(cell) == 0; }

  // Fills `out` with the lowest free cells, ascending, and leaves the pool as it is. Needs out.size() <= free().
  void lowest_free(std::span<Cell> out) const;

  void take(Cell cell) noexcept;  // a free cell gets its first owner
  // One owner more for each of these owned cells. Lockstep branches have runs of one cell: those skip the vector loop.
  void share(Cell first, Cell count) noexcept {
    if (count == 1) {
      shared_ += ++owners_[static_cast<std::size_t>(first)] == 2;
    } else {
      share_many(first, count);
    }
  }
  // One owner less; a cell without any is free.
  void release(Cell first, Cell count) noexcept {
    if (count == 1 && owners(first) > 1) {
      shared_ -= --owners_[static_cast<std::size_t>(first)] == 1;
    } else {
      release_many(first, count);
    }
  }
  void clear() noexcept;

 private:
  void share_many(Cell first, Cell count) noexcept;
  void release_many(Cell first, Cell count) noexcept;
  void mark_free(Cell first, Cell count) noexcept;

  std::vector<std::uint16_t> owners_;  // [capacity]; contiguous, so that sharing a run is one vector loop
  std::vector<std::uint64_t> free_;    // bit set: free
  std::size_t hint_ = 0;               // no word below has a free cell
  Cell used_ = 0;
  Cell shared_ = 0;
};

}  // namespace agentkv
