// What an engine has done since it was made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace agentkv {

struct Stats {
  std::uint64_t steps = 0;     // step() calls that fed rows
  std::uint64_t forwards = 0;  // forwards that succeeded
  std::uint64_t failed_forwards = 0;
  std::uint64_t retries = 0;  // forwards of a single job after a merged one failed
  std::uint64_t rows = 0;
  std::uint64_t decode_rows = 0;
  std::uint64_t prefill_rows = 0;
  std::vector<std::uint64_t> steps_by_rows;  // [rows] -> steps that fed as many
  std::uint64_t tokens_generated = 0;
  std::uint64_t tokens_prefilled = 0;
  std::uint64_t tokens_reused = 0;    // prompt tokens found in another branch's cells
  std::uint64_t tokens_drafted = 0;   // draft nodes that the target verified
  std::uint64_t tokens_accepted = 0;  // of these, accepted ones
  std::uint64_t draft_rounds = 0;     // calls of a drafter
  double draft_seconds = 0;           // inside drafters
  double forward_seconds = 0;         // inside the program
  double overhead_seconds = 0;        // the rest of step()

  void count_step(std::size_t step_rows) {
    ++steps;
    if (steps_by_rows.size() <= step_rows) steps_by_rows.resize(step_rows + 1, 0);
    ++steps_by_rows[step_rows];
  }
};

}  // namespace agentkv
