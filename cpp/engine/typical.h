// The typical value of something measured again and again on a machine that has other things to do.
#pragma once

#include <algorithm>
#include <cstdint>

namespace agentkv {

// Falls fast and rises slowly, so that it stays near what an undisturbed measurement gives.
class Typical {
 public:
  void learn(double x) {
    const double weight = x < value_ ? kFall : kRise;
    value_ = known_ ? value_ + weight * (std::min(x, kMost * value_) - value_) : x;
    known_ = true;
  }
  bool known() const { return known_; }
  double value() const { return value_; }  // 0 before the first

 private:
  static constexpr double kFall = 0.3;
  static constexpr double kRise = 0.05;
  static constexpr double kMost = 3;  // of the value: what is more than that is an interruption

  double value_ = 0;
  bool known_ = false;
};

}  // namespace agentkv
