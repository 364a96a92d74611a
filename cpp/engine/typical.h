// The typical value of something measured again and again on a machine that has other things to do.
#pragma once

#include <algorithm>
#include <cstdint>

namespace agentkv {

// A moving mean that leans to what an undisturbed measurement gives. The first ones, made while
// memory is touched for the first time, count by their least.
class Typical {
 public:
  void learn(double x) {
    if (times_ < kFirst) {
      value_ = times_++ == 0 ? x : std::min(value_, x);
      return;
    }
    const double weight = x < value_ ? kFall : kRise;
    value_ += weight * (std::min(x, kMost * value_) - value_);
  }
  bool known() const { return times_ > 0; }
  double value() const { return value_; }  // 0 before the first

 private:
  static constexpr double kFall = 0.15;
  static constexpr double kRise = 0.12;
  static constexpr double kMost = 3;  // of the value: what is more than that is an interruption

  static constexpr std::uint8_t kFirst = 3;

  double value_ = 0;
  std::uint8_t times_ = 0;
};

}  // namespace agentkv
