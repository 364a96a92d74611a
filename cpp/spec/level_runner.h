// Runs rows of several sequences of a tree cache, plain ones and draft nodes, in as few forwards as a program's bounds
// allow. Each forward is a transaction.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/cache.h"
#include "engine/types.h"

namespace agentkv {

// The rows of one forward.
struct LevelRows {
  std::size_t first = 0;                         // of these among all rows that were added
  std::span<const std::int64_t> tokens;          // [n]
  std::span<const std::int64_t> positions;       // [n]
  std::span<const std::int64_t> logits_indices;  // [n_logits], from the first of these rows
};

class LevelRunner {
 public:
  LevelRunner(TreeSeqCache& cache, std::int32_t max_tokens, std::int32_t max_logits);

  void clear();
  // Rows of one sequence follow each other: plain ones, or nodes. `parent` is a place in the sequence's frontier. A
  // node's logits are always wanted.
  void add_plain(SeqId seq, Token token, bool wants_logits);
  void add_node(SeqId seq, Token token, std::int32_t parent);

  std::size_t rows() const { return tokens_.size(); }
  Cell free_cells() const { return cache_.capacity() - cache_.used() - static_cast<Cell>(rows()); }

  // Calls forward(const LevelRows&) for each forward, and then absorb(const LevelRows&, what it returned). What either
  // throws leaves the cache as it was before that forward, and is passed on.
  template <class Forward, class Absorb>
  void run(Forward&& forward, Absorb&& absorb) {
    for (std::size_t first = 0; first < rows();) {
      const LevelRows rows = begin(first);
      try {
        const auto start = std::chrono::steady_clock::now();
        const auto result = forward(rows);
        seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        ++forwards_;
        absorb(rows, result);
        cache_.commit_step();
      } catch (...) {
        cache_.abort_step();
        throw;
      }
      first += rows.tokens.size();
    }
  }

  std::uint64_t forwards() const { return forwards_; }  // that succeeded
  double seconds() const { return seconds_; }           // inside them

 private:
  static constexpr std::int32_t kPlain = -2;

  LevelRows begin(std::size_t first);
  void propose(std::size_t first, std::size_t count);

  TreeSeqCache& cache_;
  const std::size_t max_tokens_;
  const std::size_t max_logits_;
  std::vector<SeqId> seq_ids_;
  std::vector<std::int64_t> tokens_;
  std::vector<std::int32_t> parents_;  // kPlain for plain rows
  std::vector<bool> wants_logits_;
  std::vector<std::int64_t> positions_;       // of one forward
  std::vector<std::int64_t> logits_indices_;  // of one forward
  std::uint64_t forwards_ = 0;
  double seconds_ = 0;
};

}  // namespace agentkv
