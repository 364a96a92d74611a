// Cost: how long a forward of the target takes by its rows, and a level of a drafter.
#pragma once

#include <array>
#include <cstddef>

#include "engine/policy_options.h"

namespace agentkv {

// A mean over recent observations.
struct Average {
  double value = 0;
  double weight = 0;  // observations that it stands for

  void learn(double observed, const PolicyOptions& options);
  // Time went by without an observation: the next one counts for more.
  void fade(const PolicyOptions& options) { weight *= 1 - 1 / options.memory; }
};

// Seconds of a decode forward. A single row is a case of its own, because kernels for it are another kind. From two
// rows on a straight line is fitted, and row counts that ran of late keep their distance from it, because kernels work
// in tiles. What did not run for long is forgotten: a row count that was timed on a busy machine would never be tried
// again.
class TargetCost {
 public:
  explicit TargetCost(const PolicyOptions& options);

  void learn(std::size_t rows, double seconds);
  bool known() const { return single_.weight > 0 || forwards_.n > 0; }
  // In units of a single-row forward as long as none ran. rows >= 1.
  double seconds(std::size_t rows) const;

 private:
  static constexpr std::size_t kMaxRows = 128;  // that have a distance from the line

  // Weighted sums over forwards: of 1, rows, seconds, rows^2 and rows x seconds.
  struct Sums {
    double n = 0, x = 0, y = 0, xx = 0, xy = 0;

    void add(double rows, double seconds, double weight);
    void scale(double factor);
  };

  double line(std::size_t rows) const { return offset_ + slope_ * static_cast<double>(rows); }
  void fit();

  const PolicyOptions& options_;
  Average single_{};
  Sums forwards_{};  // of two rows or more, older ones counting less
  double offset_ = 0;
  double slope_ = 0;
  std::array<Average, kMaxRows + 1> distances_{};  // [rows] from the line
};

}  // namespace agentkv
