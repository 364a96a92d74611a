// One line of history: its tokens, how many of them the cache holds, and what was computed at its end.
#pragma once

#include <span>

#include "engine/branch_state.h"

namespace agentkv {

class Job;

struct Branch : BranchState {
  BranchId id = 0;
  SeqId seq = 0;
  Pos n_cached = 0;        // the cache holds log[0, n_cached)
  Job* job = nullptr;      // the live job
  Pos told = 0;            // this many tokens of the log are as they were last told
  bool changed = false;    // there is something to tell
  JobId extended_by = -1;  // the extend that made the end of the log, where nothing came after it
  Pos extended_from = 0;   // the length that it found

  Pos length() const { return static_cast<Pos>(log.size()); }
  std::span<const Token> pending() const { return std::span(log).subspan(static_cast<std::size_t>(n_cached)); }
};

}  // namespace agentkv
