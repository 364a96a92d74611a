// A test aid: makes a forward fail in the middle of the model, as a real kernel or allocation would.
#pragma once

#include <cstdint>
#include <functional>

namespace agentkv {

// Armed for one failure at a time; a forward that failed disarms it.
class FaultInjector {
 public:
  // The forward after the next `after_forwards` ones throws InvalidTensor before `layer` is written.
  void fail_at(int layer, std::int64_t after_forwards);
  void disarm() { armed_ = false; }
  bool armed() const { return armed_; }

  // Called once per forward: the hook for that forward, empty unless it is the one that fails.
  std::function<void(int)> next_forward();

 private:
  bool armed_ = false;
  int layer_ = 0;
  std::int64_t after_forwards_ = 0;
};

}  // namespace agentkv
