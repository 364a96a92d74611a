// Cells that are read or written between steps: those of branches that are saved or set aside, and those that come
// back.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "engine/branch_table.h"
#include "engine/stored_branch.h"

namespace agentkv {

using PinId = std::int64_t;  // never reused

// A pin is a sequence of no branch whose position i is row i of what is stored. Its cells stay, whatever becomes of
// the branches and wherever cells move, until it is released.
class PinnedCells {
 public:
  explicit PinnedCells(BranchTable& branches) : branches_(branches) {}

  struct Pin {
    PinId id;
    Pos rows;
  };

  // Every cell of these branches, once each, and the branches as they are now, running jobs or not. Throws
  // BranchClosed, TooManyBranches when no sequence is spare.
  std::pair<Pin, std::vector<StoredBranch>> take(std::span<const BranchId> ids);
  // A branch as it is now, running a job or not, without its cells and the logits behind it.
  StoredBranch image(BranchId id) const;
  // The cells at the ends of these branches that nobody else has, once each. They run nothing, or wait for room. Throws
  // BranchBusy, BranchClosed, TooManyBranches.
  Pin take_unshared(std::span<const BranchId> ids);
  Pin take_unshared(BranchId id) { return take_unshared(std::span(&id, 1)); }
  // New cells, to be written; with an `align`, in a row from a multiple of it on if there are such cells. Throws
  // ContextFull, TooManyBranches.
  Pin reserve(Pos rows, Cell align = 0);

  // Where rows [first, first + count) lie now. Throws InvalidRange.
  std::vector<Cell> cells(PinId id, Pos first, Pos count) const;
  // Where the rows that the branch ends with lie in that.
  std::vector<Piece> end_of(PinId id, const Branch& branch) const;
  // Of how many groups of layers these rows have none; or that they have none from now on.
  std::vector<std::uint8_t> lacks(PinId id, Pos first, Pos count) const;
  void discard(PinId id, Pos first, std::span<const std::uint8_t> lacks);
  bool empty() const { return pins_.empty(); }
  std::size_t size() const { return pins_.size(); }
  SeqId sequence(PinId id) const;  // throws InvalidRange for a pin that there is not
  void unpin(PinId id);            // one that was let go of is left alone

 private:
  Pin add(SequenceLease seq);
  SequenceLease spare();

  BranchTable& branches_;
  std::map<PinId, SequenceLease> pins_;
  PinId next_ = 0;
};

}  // namespace agentkv
