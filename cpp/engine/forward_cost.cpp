#include "engine/forward_cost.h"

#include <algorithm>

namespace agentkv {
namespace {

constexpr double kForget = 0.97;  // what a measurement keeps of the weight of those before it
constexpr double kMost = 3;       // of what is expected: what took longer was interrupted
constexpr double kGuess = 1.0 / 16;
constexpr double kGuessWeight = 0.5;  // of the guess, at each of two row counts
constexpr double kGuessRows[] = {2, 18};

}  // namespace

void ForwardCost::learn(std::size_t rows, double seconds) {
  if (rows < 2) {
    single_.learn(seconds);
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
}

void ForwardCost::fit() {
  // Seconds of a single row by what is known, for the guess.
  const double mean_rows = n_ > 0 ? x_ / n_ : 1;
  const double one = single_.known() ? single_.value() : y_ / n_ / (1 + kGuess * mean_rows);
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
  if (rows < 2 && single_.known()) return single_.value();
  const double line = offset_ + slope_ * static_cast<double>(rows);
  return single_.known() ? std::max(line, single_.value()) : line;
}

}  // namespace agentkv
