#include "engine/forward_cost.h"

#include <algorithm>

namespace agentkv {
namespace {

constexpr std::size_t kFewRows = 6;
constexpr double kForget = 0.95;  // what a round keeps of the weight of those before it

// The shape that is assumed outside of what was seen: each row costs a sixteenth of a forward.
double guess(std::size_t rows) { return 1 + static_cast<double>(rows) / 16; }

}  // namespace

void ForwardCost::learn(std::size_t rows, double seconds) { seen_[std::min(rows, kMostRows)].learn(seconds); }

void ForwardCost::learn_speed(double seconds, std::size_t tokens) {
  seconds_ = kForget * seconds_ + seconds;
  tokens_ = kForget * tokens_ + static_cast<double>(tokens);
}

// From two rows on: kernels for a single row are another kind.
double ForwardCost::row_seconds(std::size_t rows) const {
  const std::size_t from = std::max<std::size_t>(rows, 2);
  return (seconds(from + kFewRows) - seconds(from)) / kFewRows;
}

double ForwardCost::seconds(std::size_t rows) const {
  rows = std::min(rows, kMostRows);
  std::size_t below = rows;
  while (below > 0 && !seen_[below].known()) --below;
  std::size_t above = rows;
  while (above <= kMostRows && !seen_[above].known()) ++above;
  if (below == 0 && above > kMostRows) return guess(rows);
  if (below == 0) return seen_[above].value() * guess(rows) / guess(above);
  const double low = seen_[below].value();
  if (above > kMostRows) return low * guess(rows) / guess(below);
  if (above == below) return low;
  const auto share = static_cast<double>(rows - below) / static_cast<double>(above - below);
  return low + (std::max(low, seen_[above].value()) - low) * share;
}

}  // namespace agentkv
