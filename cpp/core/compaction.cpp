#include "core/compaction.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace agentkv {
namespace {

bool is_one_run(std::span<const Cell> cells) {
  return std::adjacent_find(cells.begin(), cells.end(), [](Cell a, Cell b) { return a + 1 != b; }) == cells.end();
}

// Orders the moves so that none overwrites the source of a later one. Moves in a circle are left out, and their cells
// stay where they are: together they are the same cells.
CellMoves ordered_moves(std::span<const Cell> chain, std::vector<Cell>& target) {
  std::vector<std::size_t> pending;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    if (chain[i] != target[i]) pending.push_back(i);
  }
  CellMoves moves;
  while (!pending.empty()) {
    const auto safe = std::find_if(pending.begin(), pending.end(), [&](std::size_t i) {
      return std::none_of(pending.begin(), pending.end(),
                          [&](std::size_t j) { return j != i && chain[j] == target[i]; });
    });
    if (safe == pending.end()) {
      for (const std::size_t i : pending) target[i] = chain[i];
      break;
    }
    moves.src.push_back(chain[*safe]);
    moves.dst.push_back(target[*safe]);
    pending.erase(safe);
  }
  return moves;
}

}  // namespace

CellMoves compact_chain(const CellPool& pool, std::span<const Cell> frontier, std::span<const Cell> chain, Cell next,
                        std::vector<Cell>& target) {
  target.assign(chain.begin(), chain.end());
  if (chain.empty()) return {};
  std::vector<Cell> own(frontier.begin(), frontier.end());
  std::sort(own.begin(), own.end());
  const auto usable = [&](Cell cell) { return pool.is_free(cell) || std::binary_search(own.begin(), own.end(), cell); };
  const auto length = static_cast<Cell>(chain.size());
  bool continues = next + length - 1 <= own.back();
  for (Cell cell = next; continues && cell < next + length; ++cell) continues = usable(cell);
  if (continues) {
    std::iota(target.begin(), target.end(), next);
  } else if (!is_one_run(chain)) {
    std::copy_n(own.begin(), length, target.begin());
  }
  return ordered_moves(chain, target);
}

CellMoves moves_to_front(const CellPool& pool) {
  CellMoves moves;
  for (Cell cell = pool.used() + pool.kept(); cell < pool.window(); ++cell) {
    if (!pool.is_free(cell)) moves.src.push_back(cell);
  }
  moves.dst.resize(moves.src.size());
  pool.lowest_free(moves.dst);
  return moves;
}

Moved::Moved(const CellPool& pool, const CellMoves& moves)
    : first_(pool.used() + pool.kept()), to_(static_cast<std::size_t>(std::max(pool.window() - first_, Cell{0}))) {
  for (std::size_t i = 0; i < moves.src.size(); ++i)
    to_[static_cast<std::size_t>(moves.src[i] - first_)] = moves.dst[i];
}

RunList Moved::runs(std::span<const Run> runs) const {
  RunList out;
  for (const Run& run : runs) {
    const Cell stays = std::clamp(first_ - run.cell, Cell{0}, run.length);
    append_run(out, {run.position, run.cell, stays});
    for (Cell i = stays; i < run.length; ++i) {
      append_run(out, {run.position + i, to_[static_cast<std::size_t>(run.cell + i - first_)], 1});
    }
  }
  return out;
}

}  // namespace agentkv
