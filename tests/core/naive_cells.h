// The seq bookkeeping as plainly as it can be said: a cell is a position and a set of owners.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "core/types.h"

namespace agentkv::testing {

struct NaiveCells {
  struct NaiveCell {
    Pos position = 0;
    std::set<SeqId> owners;
  };

  explicit NaiveCells(Cell capacity) : cells(static_cast<std::size_t>(capacity)) {}

  std::map<Pos, Cell> held(SeqId seq) const {
    std::map<Pos, Cell> out;
    for (std::size_t cell = 0; cell < cells.size(); ++cell) {
      if (cells[cell].owners.contains(seq)) out[cells[cell].position] = static_cast<Cell>(cell);
    }
    return out;
  }

  Pos length(SeqId seq) const {  // what was removed at the end shortens it, a hole does not
    const auto found = lengths.find(seq);
    return found == lengths.end() ? 0 : found->second;
  }

  void put(Cell cell, Pos position, SeqId seq) {
    cells[static_cast<std::size_t>(cell)] = {position, {seq}};
    lengths[seq] = position + 1;
  }

  Cell count(std::size_t owners) const {  // cells with at least so many
    return static_cast<Cell>(
        std::count_if(cells.begin(), cells.end(), [&](const NaiveCell& c) { return c.owners.size() >= owners; }));
  }

  Cell window() const {
    Cell window = 0;
    for (std::size_t cell = 0; cell < cells.size(); ++cell) {
      if (!cells[cell].owners.empty()) window = static_cast<Cell>(cell) + 1;
    }
    return window;
  }

  bool in_range(SeqId seq, Pos p0, Pos p1) const {
    const Pos end = length(seq);
    return end > 0 && 0 <= p0 && p0 <= (p1 < 0 ? end : p1) && p1 <= end;
  }

  bool copy(SeqId src, SeqId dst, Pos p0, Pos p1) {
    if (!in_range(src, p0, p1)) return false;
    const Pos end = p1 < 0 ? length(src) : p1;
    for (const auto& [position, cell] : held(dst)) {
      if (p0 <= position && position < end) return false;
    }
    for (const auto& [position, cell] : held(src)) {
      if (p0 <= position && position < end) cells[static_cast<std::size_t>(cell)].owners.insert(dst);
    }
    if (p0 < end) lengths[dst] = std::max(length(dst), end);
    return true;
  }

  bool remove(SeqId seq, Pos p0, Pos p1) {
    if (!in_range(seq, p0, p1)) return false;
    const Pos end = p1 < 0 ? length(seq) : p1;
    for (const auto& [position, cell] : held(seq)) {
      if (p0 <= position && position < end) cells[static_cast<std::size_t>(cell)].owners.erase(seq);
    }
    if (end == length(seq)) lengths[seq] = p0;
    return true;
  }

  bool keep(SeqId seq) {
    if (length(seq) == 0) return false;
    lengths = {{seq, length(seq)}};
    for (NaiveCell& cell : cells) cell.owners = cell.owners.contains(seq) ? std::set<SeqId>{seq} : std::set<SeqId>{};
    return true;
  }

  std::vector<Cell> lowest_free(std::size_t n) const {
    std::vector<Cell> out;
    for (std::size_t cell = 0; cell < cells.size() && out.size() < n; ++cell) {
      if (cells[cell].owners.empty()) out.push_back(static_cast<Cell>(cell));
    }
    return out;
  }

  // Is the cell of position `at` in sequence `seq` within reach of a query at `position`?
  static bool near(Pos position, Pos at, Pos window, Pos sinks) {
    return at <= position && (window == 0 || at > position - window || at < sinks);
  }

  std::vector<NaiveCell> cells;
  std::map<SeqId, Pos> lengths;
};

}  // namespace agentkv::testing
