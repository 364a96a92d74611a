// Every cell has the owners that the tables say: recounted, for tests and debug builds.
#include "core/cells.h"
#include "core/check_owners.h"

namespace agentkv {
namespace {

// Owners of each cell, and whether it is kept, as those say who have it.
struct Count {
  explicit Count(Cell capacity)
      : owners(static_cast<std::size_t>(capacity)), kept(static_cast<std::size_t>(capacity)) {}

  void own(const Run& run, SeqId seq) {
    check(run);
    for (Cell i = 0; i < run.length; ++i) ++owners[static_cast<std::size_t>(run.cell + i)];
    owners_agree(run.length > 0, "sequence ", seq, " has a run without cells at position ", run.position);
  }

  void keep(const Run& run) {
    check(run);
    for (Cell i = 0; i < run.length; ++i) {
      auto& count = kept[static_cast<std::size_t>(run.cell + i)];
      owners_agree(count++ == 0, "cell ", run.cell + i, " is kept by two edges of the prefix tree");
    }
  }

  void check(const Run& run) const {
    owners_agree(run.cell >= 0 && run.cell <= static_cast<Cell>(owners.size()) - run.length, "cells [", run.cell, ", ",
                 run.cell + run.length, ") of ", owners.size());
  }

  std::vector<std::int32_t> owners;
  std::vector<std::uint8_t> kept;
};

}  // namespace

void Cells::check_owners() const {
  step_.check_closed("check_owners");
  Count count(capacity());
  for (SeqId seq = 0; seq < max_sequences(); ++seq) {
    Pos end = 0;
    for (const Run& run : table_.runs(seq)) {
      owners_agree(run.position >= end, "sequence ", seq, " has position ", run.position, " twice");
      end = end_position(run);
      count.own(run, seq);
    }
    owners_agree(end <= table_.length(seq), "sequence ", seq, " has cells up to position ", end, " and a length of ",
                 table_.length(seq));
    for (const Cell cell : frontier(seq).cells()) count.own({0, cell, 1}, seq);
  }
  for (const Run& run : kept_.all_runs()) count.keep(run);
  table_.pool().check(count.owners, count.kept);
}

void CellPool::check(std::span<const std::int32_t> owners, std::span<const std::uint8_t> kept) const {
  Cell used = 0, kept_alone = 0, shared = 0;
  for (Cell cell = 0; cell < capacity(); ++cell) {
    const auto i = static_cast<std::size_t>(cell);
    owners_agree(owners_[i] == owners[i], "cell ", cell, " counts ", owners_[i], " owners, and ", owners[i],
                 " sequences have it");
    owners_agree(keeps_[i] == kept[i], "cell ", cell,
                 kept[i] ? " is of the prefix tree, and not marked"
                         : " is marked "
                           "as kept, and of no edge of the prefix tree");
    owners_agree(marked_free(cell) == is_free(cell), "cell ", cell,
                 is_free(cell) ? " is free, and not on the list" : " is on the list of free cells, and has an owner");
    used += owners[i] > 0;
    kept_alone += owners[i] == 0 && kept[i];
    shared += owners[i] > 1;
  }
  owners_agree(used == used_ && kept_alone == kept_ && shared == shared_, used, " cells are used, ", kept_alone,
               " kept and ", shared, " shared, and the counts say ", used_, ", ", kept_, " and ", shared_);
}

}  // namespace agentkv
