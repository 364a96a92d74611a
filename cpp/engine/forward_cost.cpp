#include "engine/forward_cost.h"

#include <algorithm>

namespace agentkv {
namespace {

constexpr double kForget = 0.97;    // what a measurement keeps of the weight of those before it
constexpr double kMost = 3;         // of what is expected: what took longer was interrupted
constexpr double kMostWeight = 16;  // forwards that a distance from the line remembers
constexpr double kLineWeight = 3;   // forwards that the line is worth against them
constexpr double kGuess = 1.0 / 16;
constexpr double kGuessWeight = 0.5;  // of the guess, at each of two row counts
constexpr double kGuessRows[] = {2, 18};

}  // namespace

void ForwardCost::learn(std::size_t rows, double seconds) {
  if (rows < 2) {
    if (singles_ > 4) seconds = std::min(seconds, kMost * single_);
    singles_ = kForget * singles_ + 1;
    single_ += (seconds - single_) / singles_;
  } else {
    if (n_ > 4) seconds = std::min(seconds, kMost * this->seconds(rows));
    const auto x = static_cast<double>(rows);
    n_ = kForget * n_ + 1;
    x_ = kForget * x_ + x;
    y_ = kForget * y_ + seconds;
    xx_ = kForget * xx_ + x * x;
    xy_ = kForget * xy_ + x * seconds;
  }
  fit();
  if (rows < 2 || rows > kMostRows) return;
  Distance& distance = distances_[rows];
  distance.weight = std::min(distance.weight + 1, kMostWeight);
  distance.seconds += (seconds - line(rows) - distance.seconds) / distance.weight;
}

void ForwardCost::fit() {
  // Seconds of a single row by what is known, for the guess.
  const double mean_rows = n_ > 0 ? x_ / n_ : 1;
  const double one = singles_ > 0 ? single_ : y_ / n_ / (1 + kGuess * mean_rows);
  double n = n_, x = x_, y = y_, xx = xx_, xy = xy_;
  for (const double rows : kGuessRows) {
    const double guess = one * (1 + kGuess * rows);
    n += kGuessWeight;
    x += kGuessWeight * rows;
    y += kGuessWeight * guess;
    xx += kGuessWeight * rows * rows;
    xy += kGuessWeight * rows * guess;
  }
  slope_ = std::max(0.0, (n * xy - x * y) / (n * xx - x * x));
  offset_ = (y - slope_ * x) / n;
}

void ForwardCost::learn_speed(double seconds, std::size_t tokens) {
  seconds_ = kForget * seconds_ + seconds;
  tokens_ = kForget * tokens_ + static_cast<double>(tokens);
}

double ForwardCost::seconds(std::size_t rows) const {
  if (rows < 2 && singles_ > 0) return single_;
  double expected = line(rows);
  if (rows <= kMostRows) {
    const Distance& distance = distances_[rows];
    expected += distance.seconds * distance.weight / (distance.weight + kLineWeight);
  }
  return singles_ > 0 ? std::max(expected, single_) : expected;
}

}  // namespace agentkv
