#include "engine/forward_cost.h"

#include <algorithm>

namespace agentkv {
namespace {

constexpr double kSlowest = 3;          // a measurement above so many times the mean is the machine's doing
constexpr double kLeastWeight = 0.05;   // of a new measurement: the mean follows the growing history
constexpr double kRowGuess = 1.0 / 16;  // of a forward, for one more row than was ever seen

}  // namespace

void ForwardCost::learn(std::size_t rows, double seconds) {
  Seen& seen = seen_[std::min(rows, kMostRows)];
  if (seen.times >= 4) seconds = std::min(seconds, kSlowest * seen.seconds);
  ++seen.times;
  seen.seconds += (seconds - seen.seconds) * std::max(kLeastWeight, 1.0 / seen.times);
}

double ForwardCost::seconds(std::size_t rows) const {
  rows = std::min(rows, kMostRows);
  std::size_t below = rows;
  while (below > 0 && seen_[below].times == 0) --below;
  std::size_t above = rows;
  while (above <= kMostRows && seen_[above].times == 0) ++above;
  if (below == 0 && above > kMostRows) return 1 + kRowGuess * static_cast<double>(rows);
  if (below == 0) return seen_[above].seconds;
  const double low = seen_[below].seconds;
  const auto extra = static_cast<double>(rows - below);
  if (above > kMostRows) return low * (1 + kRowGuess * extra / static_cast<double>(below));
  if (above == below) return low;
  return low + (std::max(low, seen_[above].seconds) - low) * extra / static_cast<double>(above - below);
}

}  // namespace agentkv
