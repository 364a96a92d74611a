// Which cells are free, how many sequences own each of the others, and which are kept for those to come.
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
  Cell used() const { return used_; }  // cells with an owner
  Cell kept() const { return kept_; }  // cells that no sequence owns, and that are not free
  Cell free() const { return capacity() - used_ - kept_; }
  Cell shared() const { return shared_; }  // cells with two owners or more
  Cell window() const;                     // one past the highest owned cell
  std::uint16_t owners(Cell cell) const { return owners_[static_cast<std::size_t>(cell)]; }
  bool is_free(Cell cell) const { return owners(cell) == 0 && !is_kept(cell); }

  // Fills `out` with the lowest free cells, ascending, and leaves the pool as it is. Needs out.size() <= free().
  void lowest_free(std::span<Cell> out) const;

  // The lowest of n cells in a row that no sequence owns, a multiple of `align`; -1 where there are none. Kept cells
  // among them count as taken unless `kept_too`. n and align are at least 1.
  Cell find_run(Cell n, Cell align, bool kept_too) const;

  void take(Cell cell) noexcept;  // a free cell gets its first owner
  // One owner more for each of these cells, which are owned or kept. Lockstep branches have runs of one cell: those
  // skip the vector loop.
  void share(Cell first, Cell count) noexcept {
    if (count == 1 && owners(first) > 0) {
      shared_ += ++owners_[static_cast<std::size_t>(first)] == 2;
    } else {
      share_many(first, count);
    }
  }
  // One owner less; a cell without any is free, unless it is kept.
  void release(Cell first, Cell count) noexcept {
    if (count == 1 && owners(first) > 1) {
      shared_ -= --owners_[static_cast<std::size_t>(first)] == 1;
    } else {
      release_many(first, count);
    }
  }
  // Owned cells are kept: they will not be free when they have no owner any more.
  void keep(Cell first, Cell count) noexcept;
  // A cell is no longer kept; is it free now?
  bool drop(Cell cell) noexcept;
  // The cell, which is not free, holds nothing in the layers of its first `groups` groups: see SeqCache::seq_discard.
  // A cell that gets its first owner lacks nothing.
  void set_lacks(Cell cell, std::uint8_t groups) noexcept { lacks_[static_cast<std::size_t>(cell)] = groups; }
  std::span<const std::uint8_t> lacks() const { return lacks_; }  // [capacity]
  // What src[i] is becomes what the free cell dst[i] is, and the other way round.
  void move(std::span<const Cell> src, std::span<const Cell> dst) noexcept;
  void clear() noexcept;
  // Throws std::logic_error unless these are the owners of each cell, and whether it is kept: see Cells::check_owners.
  void check(std::span<const std::int32_t> owners, std::span<const std::uint8_t> kept) const;

 private:
  bool is_kept(Cell cell) const { return keeps_[static_cast<std::size_t>(cell)] != 0; }

  bool marked_free(Cell cell) const {
    const auto index = static_cast<std::size_t>(cell);
    return (free_[index / 64] >> (index % 64) & 1) != 0;
  }
  void share_many(Cell first, Cell count) noexcept;
  void release_many(Cell first, Cell count) noexcept;
  void mark_free(Cell first, Cell count) noexcept;

  std::vector<std::uint16_t> owners_;  // [capacity]; contiguous, so that sharing a run is one vector loop
  std::vector<std::uint8_t> keeps_;    // [capacity], 1: kept
  std::vector<std::uint8_t> lacks_;    // [capacity] groups of layers
  std::vector<std::uint64_t> free_;    // bit set: free
  std::size_t hint_ = 0;               // no word below has a free cell
  Cell used_ = 0;
  Cell kept_ = 0;
  Cell shared_ = 0;
};

}  // namespace agentkv
