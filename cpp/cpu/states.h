// What a layer of linear attention carries from block to block: at the last cell of each block, the sum over all
// positions so far.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "core/state_blocks.h"
#include "core/types.h"

namespace agentkv::cpu {

class States {
 public:
  // `floats` numbers in each of them.
  States(std::size_t floats, Cell capacity)
      : floats_(floats), of_cell_(static_cast<std::size_t>(capacity)), passes_on_(static_cast<std::size_t>(capacity)) {}

  // That of a cell, or null.
  const float* find(Cell cell) const { return of_cell_[static_cast<std::size_t>(cell)].get(); }
  float* find(Cell cell) { return of_cell_[static_cast<std::size_t>(cell)].get(); }
  // A new one of a cell; its numbers are open. One that passes on is gone once its sequence goes on. Throws
  // OutOfMemory.
  void add(Cell cell, bool passes_on = false);
  // New ones, that stay, of all cells that end blocks.
  void add_ends(const BlockRows& rows);
  // Has the cell one that stays?
  bool lasts(Cell cell) const { return find(cell) != nullptr && !passes_on_[static_cast<std::size_t>(cell)]; }
  void drop(Cell cell) noexcept;
  // Those of cells src[i] become those of dst[i], as if all were taken before any is put.
  void move(const Cell* src, const Cell* dst, std::size_t n);

  std::size_t bytes() const { return count_ * floats_ * sizeof(float); }
  std::size_t count() const { return count_; }

 private:
  std::size_t floats_, count_ = 0;
  std::vector<std::unique_ptr<float[]>> of_cell_;  // [capacity]
  std::vector<bool> passes_on_;                    // [capacity]
};

}  // namespace agentkv::cpu
