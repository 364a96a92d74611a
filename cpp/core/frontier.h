// The draft nodes of one sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/run_list.h"
#include "core/types.h"

namespace agentkv {

// Nodes [0, live()) hold cells; the rest are proposed for the next step.
class Frontier {
 public:
  std::int32_t size() const { return static_cast<std::int32_t>(parents_.size()); }
  std::int32_t live() const { return static_cast<std::int32_t>(cells_.size()); }
  std::int32_t proposed() const { return size() - live(); }
  bool empty() const { return parents_.empty(); }
  // Is every node the child of the one before it? Then its nodes are in effect plain rows.
  bool is_path() const { return is_path_; }

  Pos depth(std::int32_t node) const { return depths_[static_cast<std::size_t>(node)]; }  // 0 for a root
  std::span<const Cell> cells() const { return cells_; }                                  // [live()]

  void propose(std::span<const std::int32_t> parents);  // throws InvalidTree
  void withdraw() noexcept;                             // forgets what is only proposed
  void add_cell(Cell cell) noexcept { cells_.push_back(cell); }
  void clear() noexcept;

  // Appends the node's ancestors and the node itself to `chain`, roots at position `base`. cell_of(node) is the cell of
  // any node up to it.
  template <class CellOf>
  void append_chain(std::int32_t node, Pos base, CellOf cell_of, RunList& chain) const {
    const std::size_t first = chain.size();
    std::int32_t steps = depth(node) + 1;
    path_.resize(static_cast<std::size_t>(steps));
    for (std::int32_t at = node; at >= 0; at = parents_[static_cast<std::size_t>(at)]) {
      path_[static_cast<std::size_t>(--steps)] = at;
    }
    for (const std::int32_t at : path_) append_run(chain, {base++, cell_of(at), 1}, first);
  }

  // Throws InvalidTree unless the nodes are live and form a chain from a root down.
  void check_chain(std::span<const std::int32_t> accepted) const;

 private:
  std::vector<std::int32_t> parents_;
  std::vector<Pos> depths_;
  std::vector<Cell> cells_;
  bool is_path_ = true;
  mutable std::vector<std::int32_t> path_;  // scratch
};

}  // namespace agentkv
