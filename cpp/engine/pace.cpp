#include "engine/pace.h"

#include <algorithm>

namespace agentkv {
namespace {

constexpr double kMemory = 32;  // rounds after which older ones count half
constexpr double kPoolWeight = 4;
constexpr double kGuessWeight = 2;
constexpr double kFirstGuess = 0.6;  // of the first level, before it was tried; deeper ones start as the one above
constexpr std::int32_t kFirstQuiet = 8;
constexpr std::int32_t kLongestQuiet = 256;
constexpr std::int32_t kLongestFirst = 64;  // quiet spell of a branch that has not tried itself
constexpr std::int32_t kProbeDepth = 2;
constexpr double kFree = 0.02;  // of a target's forward: what a draft may cost without being asked whether it pays

}  // namespace

void DrafterPace::Level::count(bool right) {
  if (tried >= kMemory) {
    tried /= 2;
    accepted /= 2;
  }
  tried += 1;
  accepted += right ? 1 : 0;
}

void DrafterPace::learn_cost(double seconds, std::int32_t levels_drafted, std::size_t branches) {
  level_seconds.learn(seconds / (levels_drafted * static_cast<double>(branches)));
}

// The depth with the most tokens per second: (1 + accepted levels) / (target + levels drafted).
std::int32_t Pace::best_depth(std::int32_t most, double target_seconds) const {
  double tokens = 1;
  double reach = 1;           // how often a round gets to this level
  double rate = kFirstGuess;  // how often it then comes true
  double best_speed = 1 / target_seconds;
  std::int32_t best = 0;
  for (std::int32_t level = 0; level < most; ++level) {
    const auto& own = levels_[static_cast<std::size_t>(level)];
    const auto& pool = pool_.levels[static_cast<std::size_t>(level)];
    rate = (pool.accepted + kGuessWeight * rate) / (pool.tried + kGuessWeight);
    rate = (own.accepted + kPoolWeight * rate) / (own.tried + kPoolWeight);
    reach *= rate;
    tokens += reach;
    const double speed = tokens / (target_seconds + (level + 1) * pool_.level_seconds.value());
    if (speed > best_speed) {
      best_speed = speed;
      best = level + 1;
    }
  }
  return best;
}

Pace::Pace(DrafterPace& pool)
    : acceptance(&pool.acceptance), pool_(pool), interval_(std::min(pool.interval, kLongestFirst) / 2) {}

std::int32_t Pace::depth(std::int32_t most, double target_seconds) {
  most = std::min(most, DrafterPace::kMostLevels);
  probing_ = false;
  if (pool_.level_seconds.known() && most * pool_.level_seconds.value() < kFree * target_seconds) return most;
  if (quiet_ > 0) {
    if (--quiet_ > 0) return 0;
    probing_ = true;
    return std::min(most, kProbeDepth);
  }
  const std::int32_t best = best_depth(most, target_seconds);
  if (best == 0) {
    give_up();
    quiet_ = interval_;
  }
  return best;
}

bool Pace::due() {
  if (!probing_ && ++skipped_ < std::max(interval_, kFirstQuiet)) return false;
  if (!probing_) give_up();
  skipped_ = 0;
  return true;
}

void Pace::give_up() {
  interval_ = std::clamp(2 * interval_, kFirstQuiet, kLongestQuiet);
  pool_.interval = interval_;
}

void Pace::learn(std::int32_t drafted, std::int32_t accepted) {
  for (std::int32_t level = 0; level < std::min(drafted, accepted + 1); ++level) {
    levels_[static_cast<std::size_t>(level)].count(level < accepted);
    pool_.levels[static_cast<std::size_t>(level)].count(level < accepted);
  }
  if (accepted > 0) interval_ = skipped_ = pool_.interval = 0;
}

}  // namespace agentkv
