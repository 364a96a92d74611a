// How long a forward of the target takes, by its number of rows; learnt from those that ran.
#pragma once

#include <array>
#include <cstddef>

#include "engine/typical.h"

namespace agentkv {

class ForwardCost {
 public:
  static constexpr std::size_t kMostRows = 256;  // larger forwards are not told apart

  void learn(std::size_t rows, double seconds);

  // A round of decoding, its drafting included, made so many tokens in this time.
  void learn_speed(double seconds, std::size_t tokens);

  // Expected seconds: a straight line between row counts that were seen, a guess outside of them.
  double seconds(std::size_t rows) const;
  // Of one more row, where a few are added to `rows`.
  double row_seconds(std::size_t rows) const;
  // Per token, as of late.
  double token_seconds() const { return tokens_ > 0 ? seconds_ / tokens_ : seconds(1); }

 private:
  std::array<Typical, kMostRows + 1> seen_{};
  double seconds_ = 0;  // of recent rounds, older ones counting less
  double tokens_ = 0;
};

}  // namespace agentkv
