#include "engine/draft_policy.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace agentkv {

bool RetryBackoff::take(const PolicyOptions& options) {
  if (left_ > 0) return false;
  left_ = pause_ = std::clamp(2 * pause_, options.shortest_pause, options.longest_pause);
  return true;
}

DraftPolicy::DraftPolicy(const PolicyOptions& options, const TargetCost& target, const AcceptanceRates& prior)
    : acceptance(options, prior), options_(options), target_(target) {}

void DraftPolicy::begin_round(std::size_t rows, std::size_t branches) {
  trials_.begin_round();
  for (std::size_t level = 0; level < share_.size(); ++level) {
    share_[level] = target_.seconds(rows + level * branches) / static_cast<double>(rows);
  }
}

double DraftPolicy::level_seconds() const {
  return level_.weight > 0 ? level_.value : options_.level_cost * target_.seconds(1);
}

bool DraftPolicy::costs_nothing() const {
  return AcceptanceRates::kLevels * level_seconds() < options_.tolerance * share_[0];
}

DraftPlan DraftPolicy::plan(std::int32_t max_depth, const Draft& drafted) {
  max_depth = std::min(max_depth, static_cast<std::int32_t>(AcceptanceRates::kLevels));
  if (max_depth * level_seconds() < options_.tolerance * share_[0]) return {.depth = max_depth};
  DraftPlan plan = fastest(max_depth, drafted);
  if (plan.depth == 0 && take_trial()) {
    plan.depth = 1;
    plan.trial = true;
  }
  return plan;
}

bool DraftPolicy::take_trial() {
  if (trials_.take(options_)) return true;
  acceptance.fade();
  if (level_.weight > 1) level_.fade(options_);
  return false;
}

// The depth with the most tokens per second: (1 + expected accepted levels) / (target's forward + drafting). A level
// brings nothing where what was drafted already comes true.
DraftPlan DraftPolicy::fastest(std::int32_t max_depth, const Draft& drafted) const {
  DraftPlan plan;
  const std::vector<double> there = drafted.level_probabilities();
  const auto share = [&](std::int32_t depth) {
    return share_[std::min(there.size() + static_cast<std::size_t>(depth), AcceptanceRates::kLevels)];
  };
  double tokens = std::accumulate(there.begin(), there.end(), 1.0);
  double best_speed = (1 + options_.tolerance) * tokens / share(0);
  double reach = 1;  // probability that a round gets as deep
  for (std::int32_t depth = 1; depth <= max_depth; ++depth) {
    const auto level = static_cast<std::size_t>(depth) - 1;
    reach *= acceptance.level(level);
    tokens += reach * (level < there.size() ? 1 - there[level] : 1);
    const double speed = tokens / (share(depth) + depth * level_seconds());
    if (speed <= best_speed) continue;
    best_speed = speed;
    plan.depth = depth;
  }
  const std::int32_t deepest = std::max(plan.depth, 1);
  const double row_seconds = (share(deepest) - share(0)) / deepest;
  plan.row_worth = best_speed * row_seconds;
  plan.level_worth = best_speed * (level_seconds() + row_seconds);
  return plan;
}

void DraftPolicy::learn_cost(double seconds, std::int32_t levels, std::size_t branches) {
  if (!target_.known()) return;  // the first draft runs on cold caches, with nothing to compare it with
  if (level_.weight == 0) level_ = {.value = level_seconds(), .weight = 1};
  const double each = seconds / (levels * static_cast<double>(branches));
  level_.learn(std::min(each, options_.outlier * level_.value), options_);
}

}  // namespace agentkv
