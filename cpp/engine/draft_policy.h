// The drafting policy of one drafter: drafts as deep as makes the most tokens per second, and not at all where plain
// decoding is faster.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/acceptance.h"
#include "engine/cost.h"

namespace agentkv {

// When to try again what does not pay: after longer and longer pauses, until it pays.
class RetryBackoff {
 public:
  void begin_round() { left_ = left_ > 0 ? left_ - 1 : 0; }
  bool take(const PolicyOptions& options);  // true for whoever asks first once the pause is over
  void reset() { left_ = pause_ = 0; }

 private:
  std::int32_t pause_ = 0;
  std::int32_t left_ = 0;
};

// The drafting of one branch in a round.
struct DraftPlan {
  std::int32_t depth = 0;  // levels; 0: none
  bool trial = false;      // verified even where nothing of it promises to pay
  // Expected accepted tokens below which one more row of the target, or one more level, is not worth its time.
  double row_worth = 0;
  double level_worth = 0;
};

class DraftPolicy {
 public:
  // The options and the target's cost must outlive it.
  DraftPolicy(const PolicyOptions& options, const TargetCost& target, const AcceptanceRates& prior);

  // A forward with `rows` rows is next, in which `branches` of them may be followed by drafts.
  void begin_round(std::size_t rows, std::size_t branches);
  // Whether a draft of it costs too little to be planned.
  bool costs_nothing() const;
  // The plan of one of these branches, which can use up to max_depth levels beside what was drafted for it already.
  DraftPlan plan(std::int32_t max_depth, const Draft& drafted = {});
  // Of a draft, some nodes promise to pay.
  void pays() { trials_.reset(); }
  // Nothing promises to pay: whether a little is drafted or verified all the same, to learn more.
  bool take_trial();

  void learn_cost(double seconds, std::int32_t levels, std::size_t branches);

  Acceptance acceptance;

 private:
  double level_seconds() const;
  DraftPlan fastest(std::int32_t max_depth, const Draft& drafted) const;

  const PolicyOptions& options_;
  const TargetCost& target_;
  Average level_{};  // seconds of drafting one level for one branch
  RetryBackoff trials_;
  // [levels] one branch's share of the coming forward if each branch verifies a node per level.
  std::array<double, AcceptanceRates::kLevels + 1> share_{};
};

}  // namespace agentkv
