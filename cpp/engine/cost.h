// Cost: how long a forward of the target takes by its rows, and a level of a drafter.
#pragma once

#include <array>
#include <cstddef>

#include "engine/policy_options.h"

namespace agentkv {

// A mean over recent observations that interruptions of the machine do not carry away.
struct AverageSeconds {
  double seconds = 0;
  double weight = 0;  // observations that it stands for

  void learn(double observed, const PolicyOptions& options);
  // Time went by without an observation: the next one counts for more.
  void fade(const PolicyOptions& options) { weight *= 1 - 1 / options.memory; }
};

// Seconds of a decode forward. Row counts that ran of late are remembered, each for itself because kernels work in
// tiles; those between them are interpolated, those beyond follow the guess of what a row costs. A row count that did
// not run for long is forgotten: it may have seemed dear only because the machine was busy, and would never be tried.
class TargetCost {
 public:
  explicit TargetCost(const PolicyOptions& options);

  void learn(std::size_t rows, double seconds);
  bool known() const { return known_; }
  // In units of a single-row forward as long as none ran. rows >= 1.
  double seconds(std::size_t rows) const;

 private:
  static constexpr std::size_t kMaxRows = 128;  // remembered

  double shape(std::size_t rows) const;
  void fill_gaps();

  const PolicyOptions& options_;
  bool known_ = false;
  std::array<AverageSeconds, kMaxRows + 1> measured_{};  // [rows]
  std::array<double, kMaxRows + 1> expected_{};          // [rows]
};

}  // namespace agentkv
