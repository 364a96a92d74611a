// Where the accepted chain of a draft tree goes, and where all cells go that lie far up.
#pragma once

#include <span>
#include <vector>

#include "core/cell_pool.h"
#include "core/run_list.h"
#include "core/types.h"

namespace agentkv {

// Copies of whole cells, src[i] to dst[i] in this order; no dst is the src of a later move.
struct CellMoves {
  std::vector<Cell> src;
  std::vector<Cell> dst;
};

// Chooses the cells of a chain that lies in chain[i] now. `frontier`: every cell of the tree, the chain's among them;
// `next`: the cell after the sequence's last one. The chain continues the sequence's last run where that is possible
// within the frontier's cells and free ones, stays where it is when it is one run already, and goes to the frontier's
// lowest cells otherwise. It never goes above the frontier's highest cell. Targets are written to `target`.
CellMoves compact_chain(const CellPool& pool, std::span<const Cell> frontier, std::span<const Cell> chain, Cell next,
                        std::vector<Cell>& target);

// What lies above as many cells as are taken goes into the lowest free ones.
CellMoves moves_to_front(const CellPool& pool);

// The same positions, where their cells lie after moves_to_front.
class Moved {
 public:
  Moved(const CellPool& pool, const CellMoves& moves);
  RunList runs(std::span<const Run> runs) const;

 private:
  Cell first_;            // cells below stay
  std::vector<Cell> to_;  // where the others go
};

}  // namespace agentkv
