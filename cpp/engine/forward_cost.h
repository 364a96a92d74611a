// How long a forward of the target takes, by its number of rows; learnt from those that ran.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace agentkv {

class ForwardCost {
 public:
  static constexpr std::size_t kMostRows = 256;  // larger forwards are not told apart

  void learn(std::size_t rows, double seconds);

  // Expected seconds; between row counts that were seen it goes in a straight line. 1 + rows / 16 before any was seen.
  double seconds(std::size_t rows) const;

 private:
  struct Seen {
    double seconds = 0;
    std::uint32_t times = 0;
  };

  std::array<Seen, kMostRows + 1> seen_{};
};

}  // namespace agentkv
