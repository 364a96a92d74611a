// One line of history: its tokens, how many of them the cache holds, and what was computed at its end.
#pragma once

#include <span>
#include <vector>

#include "engine/branch_state.h"
#include "engine/sequences.h"

namespace agentkv {

class Job;

// What a job made at the end of a branch and may take back, for as long as nothing came after it.
struct UndoableTail {
  JobId by = -1;
  Pos from = 0;          // the length that it found
  LogitsRow found = {};  // and the row of logits, where it was known
};

struct Branch : BranchState {
  BranchId id = 0;
  SequenceLease seq = {};
  Pos n_cached = 0;      // the cache holds what log[0, n_cached) leaves to those that follow
  Job* job = nullptr;    // the live job
  Pos told = 0;          // this many tokens of the log are as they were last told
  bool changed = false;  // there is something to tell
  UndoableTail made = {};
  // Where rows that are kept elsewhere belong, those of each offload: the first one's lie furthest back.
  std::vector<std::vector<Piece>> aside = {};

  bool offloaded() const { return !aside.empty(); }
  // As many tokens as the cache holds once all rows are back.
  Pos n_cached_then() const {
    for (const auto& rows : aside) {
      if (!rows.empty()) return rows.back().to + rows.back().length;
    }
    return n_cached;
  }
  Pos length() const { return static_cast<Pos>(log.size()); }
  std::span<const Token> pending() const { return std::span(log).subspan(static_cast<std::size_t>(n_cached)); }
};

}  // namespace agentkv
