#include "engine/pace.h"

#include <algorithm>
#include <utility>

namespace agentkv {
namespace {

constexpr double kMemory = 32;  // rounds after which older ones count half
constexpr double kPoolWeight = 2;
constexpr double kGuessWeight = 1;
constexpr double kFirstGuess = 0.9;  // of the first level, before it was tried; deeper ones start as the one above
constexpr std::int32_t kFirstQuiet = 4;
constexpr std::int32_t kLongestQuiet = 256;
constexpr std::int32_t kProbeDepth = 2;
constexpr double kCostGuess = 0.25;  // of a target's forward: a level of a drafter that was never timed
constexpr double kFree = 0.02;       // of a target's forward: what a draft may cost without being asked whether it pays

}  // namespace

void DrafterPace::Level::count(bool right) {
  if (tried >= kMemory) {
    tried /= 2;
    accepted /= 2;
  }
  tried += 1;
  accepted += right ? 1 : 0;
}

void BackOff::fail() { left = interval = std::clamp(2 * interval, kFirstQuiet, kLongestQuiet); }

void DrafterPace::begin_round() {
  quiet.left = std::max(quiet.left - 1, 0);
  untried.left = std::max(untried.left - 1, 0);
}

void DrafterPace::learn_cost(double seconds, std::int32_t levels_drafted, std::size_t branches) {
  level_seconds.learn(seconds / (levels_drafted * static_cast<double>(branches)));
}

// The depth with the most tokens per second: (1 + accepted levels) / (target + drafted levels).
std::int32_t Pace::best_depth(std::int32_t most, const TargetShare& target) const {
  double tokens = 1;
  double reach = 1;           // how often a round gets to this level
  double rate = kFirstGuess;  // how often it then comes true
  double best_speed = kMargin / target[0];
  const double level_seconds = pool_.level_seconds.known() ? pool_.level_seconds.value() : kCostGuess * target[0];
  std::int32_t best = 0;
  for (std::int32_t level = 0; level < most; ++level) {
    const auto& own = levels_[static_cast<std::size_t>(level)];
    const auto& pool = pool_.levels[static_cast<std::size_t>(level)];
    rate = (pool.accepted + kGuessWeight * rate) / (pool.tried + kGuessWeight);
    rate = (own.accepted + kPoolWeight * rate) / (own.tried + kPoolWeight);
    reach *= rate;
    tokens += reach;
    const double speed = tokens / (target[static_cast<std::size_t>(level) + 1] + (level + 1) * level_seconds);
    if (speed > best_speed) {
      best_speed = speed;
      best = level + 1;
    }
  }
  return best;
}

std::int32_t Pace::depth(std::int32_t most, const TargetShare& target) {
  most = std::min(most, DrafterPace::kMostLevels);
  const bool probed = std::exchange(probing_, false);
  if (pool_.level_seconds.known() && most * pool_.level_seconds.value() < kFree * target[0]) return most;
  const std::int32_t best = best_depth(most, target);
  if (best > 0) {
    if (probed) pool_.quiet = {};
    return best;
  }
  if (pool_.quiet.left > 0) return 0;
  probing_ = pool_.quiet.interval > 0;  // the first time it only begins to wait
  pool_.quiet.fail();
  return probing_ ? std::min(most, kProbeDepth) : 0;
}

bool Pace::due() {
  if (probing_) return true;
  if (pool_.untried.left > 0) return false;
  const bool over = pool_.untried.interval > 0;
  pool_.untried.fail();
  return over;
}

void Pace::learn(std::int32_t drafted, std::int32_t accepted) {
  for (std::int32_t level = 0; level < std::min(drafted, accepted + 1); ++level) {
    levels_[static_cast<std::size_t>(level)].count(level < accepted);
    pool_.levels[static_cast<std::size_t>(level)].count(level < accepted);
  }
  if (accepted > 0) pool_.untried = {};
}

}  // namespace agentkv
