// What a layer of linear attention or a scan carries from position to position, where some cells keep it.
#pragma once

#include <mlx/array.h>

#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "core/types.h"

namespace agentkv::mlx {

namespace mx = ::mlx::core;

// Arrays never change, so a state is taken without a copy. Those of a step are lazy until it is settled. What makes or
// drops arrays is called on the owner.
class States {
 public:
  bool has(Cell cell) const { return of_cell_.contains(cell); }
  const mx::array& at(Cell cell) const { return of_cell_.at(cell).state; }
  // One that passes on is gone once its sequence goes on.
  void put(Cell cell, const mx::array& state, bool passes_on = false);
  // Has the cell one that stays?
  bool lasts(Cell cell) const { return has(cell) && !of_cell_.at(cell).passes_on; }
  void drop(std::span<const Cell> cells);
  void drop_from(Cell first);  // of that cell and all above
  // Those of cells src[i] become those of dst[i], as if all were taken before any is put.
  void move(const Cell* src, const Cell* dst, std::size_t n);

  void collect_pending(std::vector<mx::array>& pending) const;
  // Drops those that are not evaluated.
  void drop_pending();

  std::size_t count() const { return of_cell_.size(); }

 private:
  struct Kept {
    mx::array state;
    bool passes_on;
  };
  std::map<Cell, Kept> of_cell_;
};

}  // namespace agentkv::mlx
