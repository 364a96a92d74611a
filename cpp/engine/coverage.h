// Which positions rows to come look back to, and whether the cache has them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/run_list.h"
#include "engine/branch_state.h"

namespace agentkv {

// What attention is limited to.
struct Window {
  // In every layer, as far as it is:
  Pos length = 0;  // the newest so many positions, a row's own among them; 0: no limit
  Pos sinks = 0;   // and the first so many
  Pos reach = 0;   // K and V of a position are a function of so many positions before it, over all layers
  // In some layers, where others look at everything: their windows, the shortest first, one for each group of layers.
  std::vector<Pos> groups;
  bool states = false;  // some layers keep states, which hold all that came before
};

// What the cache has of a branch's history.
class Coverage {
 public:
  Coverage(const BranchState& branch, std::span<const Run> runs, std::span<const std::uint8_t> lacks,
           const Window& window)
      : branch_(branch), runs_(runs), lacks_(lacks), window_(window) {}

  // The first position that rows from `length` on may look at and that is not there; `length` where there is none.
  Pos first_missing(Pos length) const;
  // The largest length, `length` at most, from which rows may go on: they see all that they should.
  Pos covered(Pos length) const;

 private:
  Pos next_seen(Pos p, Pos length) const;
  Pos first_lacking(Pos length) const;  // in a layer whose window it is in; `length` where there is none

  const BranchState& branch_;
  const std::span<const Run> runs_;
  const std::span<const std::uint8_t> lacks_;  // of each cell, see SeqCache::lacks
  const Window& window_;
};

}  // namespace agentkv
