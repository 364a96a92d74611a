// Every tuned constant of drafting, with the reason for it.
#pragma once

#include <cstdint>
#include <tuple>

#include "engine/field.h"

namespace agentkv {

// Changing any of them changes how fast tokens come, never which tokens. tests/benchmarks/drafting_ablation.py measures
// what each mechanism gains by setting its field to where it does nothing.
struct PolicyOptions {
  // Observations over which rates and times are averaged. Long enough to ride out chance, short enough that a branch
  // which turns from prose to a quotation is noticed while the quotation lasts.
  double memory = 32;
  // Observations that a rate measured at export counts for, and those that a guess counts for. Both fade.
  double measured_weight = 16;
  double guess_weight = 2;
  // Guesses: acceptance of a level that was never drafted (high, so that deep drafts are tried), of a node whose
  // drafter gives no confidence, cost of drafting one level and of one more row in units of a single-row forward.
  double level_acceptance = 0.9;
  double node_acceptance = 0.5;
  double level_cost = 0.25;
  double row_cost = 1.0 / 16;
  // A time above this multiple of the expected one was interrupted, and counts as this multiple.
  double outlier = 3;
  // Speeds closer than this cannot be told apart: drafts must promise as much more, and drafting that costs less than
  // this part of a forward needs no forecast.
  double tolerance = 0.02;
  // Rounds after which drafting is tried again where it does not pay, doubled while the trials fail up to the longest
  // pause: a useless drafter costs one level and one row in 256 forwards.
  std::int32_t shortest_pause = 4;
  std::int32_t longest_pause = 256;
};

inline constexpr std::tuple kPolicyFields{
    Field{"memory", &PolicyOptions::memory},
    Field{"measured_weight", &PolicyOptions::measured_weight},
    Field{"guess_weight", &PolicyOptions::guess_weight},
    Field{"level_acceptance", &PolicyOptions::level_acceptance},
    Field{"node_acceptance", &PolicyOptions::node_acceptance},
    Field{"level_cost", &PolicyOptions::level_cost},
    Field{"row_cost", &PolicyOptions::row_cost},
    Field{"outlier", &PolicyOptions::outlier},
    Field{"tolerance", &PolicyOptions::tolerance},
    Field{"shortest_pause", &PolicyOptions::shortest_pause},
    Field{"longest_pause", &PolicyOptions::longest_pause},
};

}  // namespace agentkv
