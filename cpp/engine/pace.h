// How deep a branch drafts: as deep as it pays, not at all where it does not, and now and then a try again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/acceptance.h"
#include "engine/typical.h"

namespace agentkv {

// What drafting has cost and brought, for one drafter over all its branches.
struct DrafterPace {
  static constexpr std::int32_t kMostLevels = 16;

  struct Level {
    double tried = 0;     // rounds that drafted it and got there
    double accepted = 0;  // of these, rounds in which it came true
    void count(bool right);
  };

  Acceptance acceptance{};
  std::array<Level, kMostLevels> levels{};
  Typical level_seconds{};    // of drafting one level for one branch
  std::int32_t interval = 0;  // of the branch that last gave up: where a new one begins

  void learn_cost(double seconds, std::int32_t levels_drafted, std::size_t branches);
};

class Pace {
 public:
  explicit Pace(DrafterPace& pool);

  // Levels to draft in this round, 0 for none. target_seconds: this branch's share of the target's forward.
  std::int32_t depth(std::int32_t most, double target_seconds);

  // Nothing of this round's draft pays by what is known: should a little of it be verified all the same, to know more?
  bool due();

  // A round was verified: `drafted` levels were asked for, of which the first `accepted` came true.
  void learn(std::int32_t drafted, std::int32_t accepted);

  Acceptance acceptance;

 private:
  std::int32_t best_depth(std::int32_t most, double target_seconds) const;

  DrafterPace& pool_;
  std::array<DrafterPace::Level, DrafterPace::kMostLevels> levels_{};
  void give_up();

  bool probing_ = false;       // this round drafts to see whether it pays again
  std::int32_t quiet_ = 0;     // rounds left before the next try
  std::int32_t skipped_ = 0;   // drafts since one was verified
  std::int32_t interval_ = 0;  // how long the last quiet spell was
};

}  // namespace agentkv
