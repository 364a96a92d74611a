// What closed sequences left behind: the cells of their tokens, found again by the tokens.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "core/cell_pool.h"
#include "core/compaction.h"
#include "core/run_list.h"

namespace agentkv {

// A radix tree over token ids whose edges keep cells of a pool (RadixAttention, Zheng et al. 2023). A path from the
// root spells the beginning of a history, and its cells hold the K and V of these tokens at these positions. Each cell
// is kept once, by the edge that spells its token; sequences may own it meanwhile. What was used longest ago is let go
// first, from the leaves up and an edge from its end.
class PrefixTree {
  struct Edge;

 public:
  explicit PrefixTree(CellPool& pool) : pool_(pool), root_(std::make_unique<Edge>()) {}
  ~PrefixTree() { clear(); }
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // Keeps the cells of a history: runs hold positions [0, tokens.size()) without a hole. Where the tree has its
  // beginning already, the cells that it has stay, but for those that lack more than those of the history.
  void insert(std::span<const std::int32_t> tokens, std::span<const Run> runs);
  // How many of the tokens the tree has, from the first on.
  Pos find(std::span<const std::int32_t> tokens) const;
  // The runs of the last n positions before the end of each edge: where histories end, and where they part.
  std::vector<RunList> ends(Pos n) const;
  RunList all_runs() const;  // of every edge
  // The cells of as many tokens, from position `first` on; they count as used now.
  RunList recall(std::span<const std::int32_t> tokens, Pos first);
  // Lets cells go until n more are free, or nothing is left to let go.
  void evict(Cell n) noexcept;
  void clear() noexcept;

  // Its runs where their cells will lie; to be taken over once the cells are moved.
  using MovedRuns = std::vector<std::pair<Edge*, RunList>>;
  MovedRuns moved(const Moved& moved) const;
  void take_over(MovedRuns&& moved) noexcept;

 private:
  struct Edge {
    Edge* parent = nullptr;
    Pos first = 0;  // position of the first token
    std::vector<std::int32_t> tokens;
    RunList runs;
    std::map<std::int32_t, std::unique_ptr<Edge>> children;  // by their first token
    std::uint64_t used = 0;                                  // when
  };
  using Leaf = std::pair<std::uint64_t, Edge*>;

  struct Match {
    Edge* edge;          // the last one with a token in common; the root where there is none
    std::size_t length;  // of its tokens
    Pos total;
  };

  void replace_lacking(Edge& edge, std::span<const Run> runs, Pos end);
  static RunList end_of(const Edge& edge, Pos n);
  Match match(std::span<const std::int32_t> tokens) const;
  void touch(Edge& edge) noexcept;
  void grow(Edge& leaf, std::span<const std::int32_t> tokens, const RunList& runs);
  void split(Edge& edge, std::size_t length);
  Cell trim(Edge& leaf, Cell n) noexcept;
  void remove(Edge& leaf) noexcept;

  CellPool& pool_;
  std::unique_ptr<Edge> root_;
  std::set<Leaf> leaves_;  // the one used longest ago first
  std::uint64_t clock_ = 0;
};

}  // namespace agentkv
