#include "engine/cost.h"

#include <algorithm>

namespace agentkv {
namespace {

constexpr double kForgotten = 0.25;  // of an observation, left by time

}  // namespace

void AverageSeconds::learn(double observed, const PolicyOptions& options) {
  if (weight > 0) observed = std::min(observed, options.outlier * seconds);
  weight = std::min(weight + 1, options.memory);
  seconds += (observed - seconds) / weight;
}

TargetCost::TargetCost(const PolicyOptions& options) : options_(options) { fill_gaps(); }

double TargetCost::shape(std::size_t rows) const { return 1 + options_.row_cost * static_cast<double>(rows - 1); }

double TargetCost::seconds(std::size_t rows) const {
  return rows <= kMaxRows ? expected_[rows] : expected_[kMaxRows] * shape(rows) / shape(kMaxRows);
}

void TargetCost::learn(std::size_t rows, double seconds) {
  if (rows > kMaxRows) return;
  AverageSeconds& average = measured_[rows];
  if (average.weight == 0 && known_) average = {.seconds = expected_[rows], .weight = 1};
  known_ = true;
  average.learn(seconds, options_);
  for (AverageSeconds& other : measured_) {
    if (&other == &average) continue;
    other.fade(options_);
    if (other.weight < kForgotten) other = {};
  }
  fill_gaps();
}

void TargetCost::fill_gaps() {
  std::size_t below = 0;  // the last row count that ran; 0: none yet
  for (std::size_t rows = 1; rows <= kMaxRows; ++rows) {
    if (measured_[rows].weight == 0) {
      expected_[rows] = below == 0 ? shape(rows) : expected_[below] * shape(rows) / shape(below);
      continue;
    }
    expected_[rows] = measured_[rows].seconds;
    for (std::size_t gap = below + 1; gap < rows; ++gap) {
      const double part = static_cast<double>(gap - below) / static_cast<double>(rows - below);
      expected_[gap] = below == 0 ? expected_[rows] * shape(gap) / shape(rows)
                                  : expected_[below] + part * (expected_[rows] - expected_[below]);
    }
    below = rows;
  }
  // More rows never cost less: where they seem to, the time of fewer rows was disturbed.
  for (std::size_t rows = kMaxRows; rows > 1; --rows)
    expected_[rows - 1] = std::min(expected_[rows - 1], expected_[rows]);
}

}  // namespace agentkv
