#include "engine/cost.h"

#include <algorithm>
#include <iterator>

namespace agentkv {
namespace {

// Where the line is held by the guess, until enough forwards of other row counts outweigh it.
constexpr double kGuessedRows[] = {2, 18};

}  // namespace

void Average::learn(double observed, const PolicyOptions& options) {
  weight = std::min(weight + 1, options.memory);
  value += (observed - value) / weight;
}

TargetCost::TargetCost(const PolicyOptions& options) : options_(options) { fit(); }

double TargetCost::seconds(std::size_t rows) const {
  if (rows < 2 && single_.weight > 0) return single_.value;
  double expected = line(rows);
  if (rows <= kMaxRows) {
    const Average& distance = distances_[rows];
    expected += distance.value * distance.weight / (distance.weight + options_.guess_weight);
  }
  return std::max(expected, single_.value);
}

void TargetCost::learn(std::size_t rows, double seconds) {
  const double seen = rows < 2 ? single_.weight : forwards_.n;
  if (seen > 0) seconds = std::min(seconds, options_.outlier * this->seconds(rows));
  forwards_.scale(1 - 1 / options_.memory);
  if (rows < 2) {
    single_.learn(seconds, options_);
  } else {
    forwards_.add(static_cast<double>(rows), seconds, 1);
  }
  fit();
  for (Average& distance : distances_) distance.fade(options_);
  if (rows >= 2 && rows <= kMaxRows) distances_[rows].learn(seconds - line(rows), options_);
}

void TargetCost::Sums::add(double rows, double seconds, double weight) {
  n += weight;
  x += weight * rows;
  y += weight * seconds;
  xx += weight * rows * rows;
  xy += weight * rows * seconds;
}

void TargetCost::Sums::scale(double factor) {
  for (double* sum : {&n, &x, &y, &xx, &xy}) *sum *= factor;
}

void TargetCost::fit() {
  const double row = options_.row_cost;
  Sums sums = forwards_;
  double single = 1;
  if (sums.n > 0) single = sums.y / (sums.n + row * (sums.x - sums.n));
  if (single_.weight > 0) single = single_.value;
  for (const double rows : kGuessedRows) {
    sums.add(rows, single * (1 + row * (rows - 1)), options_.guess_weight / std::size(kGuessedRows));
  }
  slope_ = std::max(0.0, (sums.n * sums.xy - sums.x * sums.y) / (sums.n * sums.xx - sums.x * sums.x));
  offset_ = (sums.y - slope_ * sums.x) / sums.n;
}

}  // namespace agentkv
