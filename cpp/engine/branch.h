// One line of history: its tokens, how many of them the cache holds, and what was computed at its end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/logits_row.h"
#include "engine/types.h"

namespace agentkv {

class Job;

struct Branch {
  BranchId id = 0;
  SeqId seq = 0;
  std::vector<Token> log;
  Pos n_cached = 0;          // the cache holds log[0, n_cached); between jobs at most one token is not in it
  LogitsRow row;             // next-token logits after log; null unless all of log is cached and they are known
  std::uint64_t stream = 0;  // of random numbers
  std::uint32_t forks = 0;   // how many children drew a stream from this one
  Job* job = nullptr;        // the live job
  Pos told = 0;              // this many tokens of the log are as they were last told
  bool changed = false;      // there is something to tell
  JobId extended_by = -1;    // the extend that made the end of the log, where nothing came after it
  Pos extended_from = 0;     // the length that it found

  Pos length() const { return static_cast<Pos>(log.size()); }
  std::span<const Token> pending() const { return std::span(log).subspan(static_cast<std::size_t>(n_cached)); }
};

}  // namespace agentkv
