// How deep a branch drafts: as deep as it pays, not at all where it does not, and now and then a try again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/acceptance.h"
#include "engine/typical.h"

namespace agentkv {

// Rounds to wait before the next try: more and more, for as long as tries fail.
struct BackOff {
  std::int32_t interval = 0;
  std::int32_t left = 0;
  void fail();
};

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
  Typical level_seconds{};  // of drafting one level for one branch
  BackOff quiet{};          // of branches that do not draft: one of them tries for all
  BackOff untried{};        // of drafts that do not pay, before one of them is verified all the same

  void begin_round();
  void learn_cost(double seconds, std::int32_t levels_drafted, std::size_t branches);
};

// A draft must promise so much more speed than plain decoding: costs are only known so well.
inline constexpr double kMargin = 1.02;

// One branch's share of the target's forward that verifies so many levels of one node each, in seconds; 0: a plain one.
using TargetShare = std::array<double, DrafterPace::kMostLevels + 1>;

class Pace {
 public:
  explicit Pace(DrafterPace& pool) : acceptance(&pool.acceptance), pool_(pool) {}

  // Levels to draft in this round, 0 for none.
  std::int32_t depth(std::int32_t most, const TargetShare& target);

  // Nothing of this round's draft pays by what is known: should a little of it be verified all the same, to know more?
  bool due();

  // A round was verified: `drafted` levels were asked for, of which the first `accepted` came true.
  void learn(std::int32_t drafted, std::int32_t accepted);

  Acceptance acceptance;

 private:
  std::int32_t best_depth(std::int32_t most, const TargetShare& target) const;

  DrafterPace& pool_;
  std::array<DrafterPace::Level, DrafterPace::kMostLevels> levels_{};
  bool probing_ = false;  // this round drafts to see whether it pays again
};

}  // namespace agentkv
