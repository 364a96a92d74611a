// Counters of an engine since it was made, and the branches and cells that it holds now.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "core/types.h"
#include "engine/field.h"

namespace agentkv {

struct Stats {
  std::uint64_t steps = 0;      // step() calls that fed rows
  std::uint64_t forwards = 0;   // forwards that succeeded
  std::uint64_t tokens = 0;     // rows that were fed
  std::uint64_t prefilled = 0;  // of these, rows of prompts and extends
  std::uint64_t refed = 0;      // rows fed again, as the cells of their tokens had been let go
  std::uint64_t generated = 0;  // tokens that were sampled
  std::uint64_t reused = 0;     // prompt tokens found in the cache
  std::uint64_t recalled = 0;   // of these, tokens that no live branch had: closed ones had left them
  std::uint64_t drafted = 0;    // draft nodes that the target verified
  std::uint64_t accepted = 0;   // of these, accepted ones
  std::uint64_t forced = 0;     // tokens that a constraint forced and that rode with what came before them
  std::uint64_t retries = 0;    // forwards of a single job after a merged one failed
  std::uint64_t draft_rounds = 0;
  double draft_seconds = 0;                  // inside drafters
  double constraint_seconds = 0;             // that steps waited for constraints
  double mask_seconds = 0;                   // that filling masks took, beside forwards
  double forward_seconds = 0;                // inside the program
  double overhead_seconds = 0;               // the rest of step()
  std::vector<std::uint64_t> rows_per_step;  // [rows] -> steps that fed as many

  // As of the call of Engine::stats().
  std::size_t branches = 0;
  Cell cells_used = 0;          // cells that some branch holds
  Cell cells_shared = 0;        // of these, cells that two or more branches hold
  Cell cells_retained = 0;      // cells that no branch holds and that are kept for those that begin alike
  Cell capacity = 0;            // cells that the cache may hold
  std::size_t draft_bytes = 0;  // memory in which drafters keep text of branches

  void count_step(std::size_t rows) {
    ++steps;
    if (rows_per_step.size() <= rows) rows_per_step.resize(rows + 1, 0);
    ++rows_per_step[rows];
  }
};

inline constexpr std::tuple kStatsFields{
    Field{"steps", &Stats::steps},
    Field{"forwards", &Stats::forwards},
    Field{"tokens", &Stats::tokens},
    Field{"prefilled", &Stats::prefilled},
    Field{"refed", &Stats::refed},
    Field{"generated", &Stats::generated},
    Field{"reused", &Stats::reused},
    Field{"recalled", &Stats::recalled},
    Field{"drafted", &Stats::drafted},
    Field{"accepted", &Stats::accepted},
    Field{"forced", &Stats::forced},
    Field{"retries", &Stats::retries},
    Field{"draft_rounds", &Stats::draft_rounds},
    Field{"draft_seconds", &Stats::draft_seconds},
    Field{"constraint_seconds", &Stats::constraint_seconds},
    Field{"mask_seconds", &Stats::mask_seconds},
    Field{"forward_seconds", &Stats::forward_seconds},
    Field{"overhead_seconds", &Stats::overhead_seconds},
    Field{"rows_per_step", &Stats::rows_per_step},
    Field{"branches", &Stats::branches},
    Field{"cells_used", &Stats::cells_used},
    Field{"cells_shared", &Stats::cells_shared},
    Field{"cells_retained", &Stats::cells_retained},
    Field{"capacity", &Stats::capacity},
    Field{"draft_bytes", &Stats::draft_bytes},
};

}  // namespace agentkv
