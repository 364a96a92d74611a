#include "engine/forward_cost.h"

#include <algorithm>

namespace agentkv {
namespace {

constexpr double kSlowest = 3;         // a measurement above so many times the mean is the machine's doing
constexpr double kLeastWeight = 0.05;  // of a new measurement: the mean follows the growing history
constexpr std::size_t kFewRows = 6;

// The shape that is assumed outside of what was seen: each row costs a sixteenth of a forward.
double guess(std::size_t rows) { return 1 + static_cast<double>(rows) / 16; }

}  // namespace

void ForwardCost::learn(std::size_t rows, double seconds) {
  Seen& seen = seen_[std::min(rows, kMostRows)];
  if (seen.times >= 4) seconds = std::min(seconds, kSlowest * seen.seconds);
  ++seen.times;
  seen.seconds += (seconds - seen.seconds) * std::max(kLeastWeight, 1.0 / seen.times);
}

void ForwardCost::learn_speed(double seconds, std::size_t tokens) {
  if (tokens == 0) return;
  double per_token = seconds / static_cast<double>(tokens);
  if (rounds_ >= 4) per_token = std::min(per_token, kSlowest * token_seconds_);
  ++rounds_;
  token_seconds_ += (per_token - token_seconds_) * std::max(kLeastWeight, 1.0 / rounds_);
}

// From two rows on: kernels for a single row are another kind.
double ForwardCost::row_seconds(std::size_t rows) const {
  const std::size_t from = std::max<std::size_t>(rows, 2);
  return (seconds(from + kFewRows) - seconds(from)) / kFewRows;
}

double ForwardCost::seconds(std::size_t rows) const {
  rows = std::min(rows, kMostRows);
  std::size_t below = rows;
  while (below > 0 && seen_[below].times == 0) --below;
  std::size_t above = rows;
  while (above <= kMostRows && seen_[above].times == 0) ++above;
  if (below == 0 && above > kMostRows) return guess(rows);
  if (below == 0) return seen_[above].seconds * guess(rows) / guess(above);
  const double low = seen_[below].seconds;
  if (above > kMostRows) return low * guess(rows) / guess(below);
  if (above == below) return low;
  const auto share = static_cast<double>(rows - below) / static_cast<double>(above - below);
  return low + (std::max(low, seen_[above].seconds) - low) * share;
}

}  // namespace agentkv
