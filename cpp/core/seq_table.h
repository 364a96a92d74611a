// The sequences over one pool of cells: who holds which position in which cell. Knows nothing of steps.
#pragma once

#include <span>
#include <vector>

#include "core/cell_pool.h"
#include "core/compaction.h"
#include "core/run_list.h"
#include "core/types.h"

namespace agentkv {

// Every verb validates its arguments in full before it changes anything.
class SeqTable {
 public:
  SeqTable(Cell capacity, SeqId max_sequences);

  const CellPool& pool() const { return pool_; }
  CellPool& pool() { return pool_; }  // for whoever keeps cells beside the sequences
  SeqId max_sequences() const { return static_cast<SeqId>(sequences_.size()); }
  SeqId live_sequences() const;  // sequences that hold something

  std::span<const Run> runs(SeqId seq) const { return sequences_[checked(seq)]; }
  // The position that follows, whether the last ones are held or not; 0 for a sequence that holds nothing.
  Pos length(SeqId seq) const { return lengths_[checked(seq)]; }

  void copy(SeqId src, SeqId dst, Pos p0, Pos p1);
  void remove(SeqId seq, Pos p0, Pos p1);  // what ends where the sequence does shortens it
  void forget(const char* verb, SeqId seq, Pos p0, Pos p1);
  void keep(SeqId seq);
  void grow(SeqId seq, Cell n);
  void grow_at(SeqId seq, Cell first, Cell n);  // into free cells
  void map(SeqId src, SeqId dst, std::span<const Piece> pieces);
  Pos shared_end(SeqId seq) const;
  // The runs of every sequence where their cells will lie; to be taken over once the cells are moved.
  std::vector<RunList> moved(const Moved& moved) const;
  void take_over(std::vector<RunList>&& moved) noexcept { sequences_.swap(moved); }
  // A sequence gets a share of these cells, which are owned or kept and lie behind all that it holds.
  void lend(SeqId seq, std::span<const Run> more);
  void clear() noexcept;

  void check_id(SeqId seq) const { checked(seq); }
  // Throws UnknownSequence for an id out of range or a sequence that holds nothing.
  void check_live(SeqId seq) const;

  void reserve(SeqId seq, std::size_t tokens);               // so that as many appends cannot throw
  void append(SeqId seq, Pos position, Cell cell) noexcept;  // a free cell becomes seq's; position >= length(seq)

  // Cells of no sequence's runs: draft nodes.
  void take(Cell cell) noexcept { pool_.take(cell); }
  void release(Cell cell) noexcept { pool_.release(cell, 1); }

 private:
  struct Range {
    Pos first;
    Pos last;
  };

  std::size_t checked(SeqId seq) const;
  Pos checked_growth(SeqId seq, Cell n) const;  // the length before
  void check_pieces(SeqId src, SeqId dst, std::span<const Piece> pieces) const;
  Range checked_range(const char* verb, SeqId seq, Pos p0, Pos p1) const;

  CellPool pool_;
  std::vector<RunList> sequences_;  // [max_sequences]
  std::vector<Pos> lengths_;        // [max_sequences]
  RunList scratch_;                 // built, then swapped in
};

}  // namespace agentkv
