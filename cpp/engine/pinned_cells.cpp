#include "engine/pinned_cells.h"

#include <algorithm>

#include "core/errors.h"
#include "core/message.h"
#include "core/run_list.h"

namespace agentkv {
namespace {

void append(std::vector<Piece>& pieces, const Piece& piece) {
  if (!pieces.empty()) {
    Piece& last = pieces.back();
    if (last.from + last.length == piece.from && last.to + last.length == piece.to) {
      last.length += piece.length;
      return;
    }
  }
  pieces.push_back(piece);
}

// Which row each cell has, and where the cells without one came from.
class Rows {
 public:
  explicit Rows(Cell capacity) : row_of_(static_cast<std::size_t>(capacity), -1) {}

  // Of a pin, whose positions are its rows.
  Rows(Cell capacity, std::span<const Run> runs) : Rows(capacity) {
    for (const Run& run : runs) {
      for (Cell i = 0; i < run.length; ++i) row_of_[static_cast<std::size_t>(run.cell + i)] = run.position + i;
    }
  }

  Pos of(Cell cell) const { return row_of_[static_cast<std::size_t>(cell)]; }  // -1 for none

  // Adds the cells of a run; `stored` gets their rows, `fresh` those that had none.
  void add(const Run& run, std::vector<Piece>& stored, std::vector<Piece>& fresh) {
    for (Cell i = 0; i < run.length; ++i) {
      Pos& row = row_of_[static_cast<std::size_t>(run.cell + i)];
      if (row < 0) {
        row = next_++;
        append(fresh, {run.position + i, row, 1});
      }
      append(stored, {row, run.position + i, 1});
    }
  }

 private:
  std::vector<Pos> row_of_;
  Pos next_ = 0;
};

class CellSet {
 public:
  explicit CellSet(Cell capacity) : holds_(static_cast<std::size_t>(capacity), false) {}

  void add(std::span<const Run> runs) {
    for (const Run& run : runs) std::fill_n(holds_.begin() + run.cell, run.length, true);
  }

  // One past the last position whose cell it holds; 0 for none.
  Pos end_in(std::span<const Run> runs) const {
    for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
      for (Cell i = run->length; i-- > 0;) {
        if (holds_[static_cast<std::size_t>(run->cell + i)]) return run->position + i + 1;
      }
    }
    return 0;
  }

 private:
  std::vector<bool> holds_;
};

// The cells of a sequence at positions [first, last), as far as it has some.
std::vector<Cell> cells_of(const TreeSeqCache& cache, SeqId seq, Pos first, Pos last) {
  std::vector<Cell> cells;
  cells.reserve(static_cast<std::size_t>(last - first));
  for (const Run& run : overlapping(cache.seq_runs(seq), first, last)) {
    const Run part = clip(run, first, last);
    for (Cell i = 0; i < part.length; ++i) cells.push_back(part.cell + i);
  }
  return cells;
}

StoredBranch without_logits(const Branch& branch) {
  return {.log = branch.log,
          .forgotten = branch.forgotten,
          .adapters = branch.adapters,
          .exact_from = branch.exact_from,
          .rng_stream = branch.rng_stream,
          .forks = branch.forks,
          .output = branch.output};
}

StoredBranch stored(const Branch& branch) {
  StoredBranch out = without_logits(branch);
  if (branch.next_logits) out.next_logits = *branch.next_logits;
  return out;
}

}  // namespace

SequenceLease PinnedCells::spare() {
  auto seq = branches_.spare();
  require<TooManyBranches>(seq.has_value(),
                           "more saves, loads and offloads at once than there are spare sequences, of "
                           "which ",
                           pins_.size(), " are taken: wait for one of them");
  return std::move(*seq);
}

PinnedCells::Pin PinnedCells::add(SequenceLease seq) {
  const Pos rows = branches_.cache().seq_len(seq);
  pins_.emplace(next_, std::move(seq));
  return {next_++, rows};
}

std::pair<PinnedCells::Pin, std::vector<StoredBranch>> PinnedCells::take(std::span<const BranchId> ids) {
  for (const BranchId id : ids) branches_.check_here(branches_.at(id));
  std::vector<StoredBranch> images;
  TreeSeqCache& cache = branches_.cache();
  Rows rows(cache.capacity());
  SequenceLease seq = spare();
  for (const BranchId id : ids) {
    const Branch& branch = branches_.at(id);
    StoredBranch& image = images.emplace_back(stored(branch));
    std::vector<Piece> fresh;
    const Pos covered = branches_.storable(branch);
    if (covered < branch.length()) image.next_logits.clear();  // of what will be fed again
    for (const Run& run : overlapping(cache.seq_runs(branch.seq), 0, covered)) {
      rows.add(clip(run, 0, covered), image.rows, fresh);
    }
    if (!fresh.empty()) cache.seq_map(branch.seq, seq, fresh);
  }
  return {add(std::move(seq)), std::move(images)};
}

StoredBranch PinnedCells::image(BranchId id) const { return without_logits(branches_.at(id)); }

PinnedCells::Pin PinnedCells::take_unshared(std::span<const BranchId> ids) {
  for (const BranchId id : ids) branches_.resting(id);
  TreeSeqCache& cache = branches_.cache();
  CellSet others(cache.capacity());
  std::vector<const Branch*> taken;
  for (const auto& [id, branch] : branches_.all()) {
    const auto runs = cache.seq_runs(branch->seq);
    // Where the last position has no cell, rows would not say where the branch ends: it stays.
    const bool ends = end_position(runs) == branch->n_cached;
    if (ends && std::find(ids.begin(), ids.end(), id) != ids.end()) {
      taken.push_back(branch.get());
    } else {
      others.add(runs);
    }
  }
  for (const auto& [id, seq] : pins_) others.add(cache.seq_runs(seq));
  Rows rows(cache.capacity());
  SequenceLease seq = spare();
  for (const Branch* branch : taken) {
    const auto runs = cache.seq_runs(branch->seq);
    std::vector<Piece> stored, fresh;
    const Pos first = others.end_in(runs);
    for (const Run& run : overlapping(runs, first, branch->n_cached)) {
      rows.add(clip(run, first, branch->n_cached), stored, fresh);
    }
    if (!fresh.empty()) cache.seq_map(branch->seq, seq, fresh);
  }
  return add(std::move(seq));
}

PinnedCells::Pin PinnedCells::reserve(Pos rows, Cell align) {
  require<InvalidRange>(rows >= 0, "reserve of ", rows, " rows");
  const Cell free = branches_.free_cells();
  require<ContextFull>(rows <= free, "bringing back what is stored needs ", rows, " cells, but ", free, " of ",
                       branches_.cache().capacity(), " are free: close or roll back branches, or open a larger cache");
  SequenceLease seq = spare();
  TreeSeqCache& cache = branches_.cache();
  if (align == 0 || rows == 0 || !cache.seq_grow_run(seq, rows, align)) cache.seq_grow(seq, rows);
  return add(std::move(seq));
}

SeqId PinnedCells::sequence(PinId id) const {
  const auto found = pins_.find(id);
  require<InvalidRange>(found != pins_.end(), "there is no pin ", id, " any more");
  return found->second;
}

std::vector<Cell> PinnedCells::cells(PinId id, Pos first, Pos count) const {
  const SeqId seq = sequence(id);
  const Pos rows = branches_.cache().seq_len(seq);
  require<InvalidRange>(first >= 0 && count >= 0 && count <= rows - first, "rows [", first, ", ",
                        std::int64_t{first} + count, ") of a pin of ", rows);
  return cells_of(branches_.cache(), seq, first, first + count);
}

std::vector<std::uint8_t> PinnedCells::lacks(PinId id, Pos first, Pos count) const {
  std::vector<std::uint8_t> out;
  const auto of = branches_.cache().lacks();
  for (const Cell cell : cells(id, first, count)) {
    out.push_back(of[static_cast<std::size_t>(cell)]);
  }
  return out;
}

void PinnedCells::discard(PinId id, Pos first, std::span<const std::uint8_t> lacks) {
  const auto count = static_cast<Pos>(lacks.size());
  cells(id, first, count);  // throws for rows that are not there
  for (const std::uint8_t groups : lacks) {
    require<InvalidRange>(groups <= branches_.groups(), "a row lacks ", int{groups}, " groups of layers of ",
                          branches_.groups());
  }
  for (Pos i = 0; i < count;) {
    const Pos begin = i;
    while (i < count && lacks[static_cast<std::size_t>(i)] == lacks[static_cast<std::size_t>(begin)]) ++i;
    const std::uint8_t groups = lacks[static_cast<std::size_t>(begin)];
    if (groups > 0) branches_.cache().seq_discard(sequence(id), first + begin, first + i, groups);
  }
}

std::vector<Piece> PinnedCells::end_of(PinId id, const Branch& branch) const {
  const TreeSeqCache& cache = branches_.cache();
  const Rows rows(cache.capacity(), cache.seq_runs(sequence(id)));
  std::vector<Piece> pieces;
  for (const Run& run : cache.seq_runs(branch.seq)) {
    for (Cell i = 0; i < run.length; ++i) {
      const Pos row = rows.of(run.cell + i);
      if (row < 0) {
        pieces.clear();
      } else {
        append(pieces, {row, run.position + i, 1});
      }
    }
  }
  return pieces;
}

void PinnedCells::unpin(PinId id) { pins_.erase(id); }

}  // namespace agentkv
