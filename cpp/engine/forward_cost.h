// How long a forward of the target takes, by its number of rows; learnt from those that ran.
#pragma once

#include <array>
#include <cstddef>

namespace agentkv {

// One row is a case of its own, because kernels for it are another kind. From two rows on a straight line is fitted
// through what was seen, older forwards counting less, and row counts that were seen often stand off it as they did:
// kernels work in tiles. What was not seen is guessed: each row more costs a sixteenth.
class ForwardCost {
 public:
  void learn(std::size_t rows, double seconds);
  // A round of decoding, its drafting included, made so many tokens in this time.
  void learn_speed(double seconds, std::size_t tokens);

  // Expected seconds of a forward, in units of a single row's before any was seen.
  double seconds(std::size_t rows) const;
  // Of one more row.
  double row_seconds() const { return slope_; }
  // Per token, as of late.
  double token_seconds() const { return tokens_ > 0 ? seconds_ / tokens_ : seconds(1); }

 private:
  void fit();
  double line(std::size_t rows) const { return offset_ + slope_ * static_cast<double>(rows); }

  static constexpr std::size_t kMostRows = 128;  // of which each has its own distance from the line

  struct Distance {
    double seconds = 0;
    double weight = 0;
  };

  double single_ = 0;   // mean of single rows, older ones counting less
  double singles_ = 0;  // their weight
  // Decayed sums over forwards of two rows or more: of 1, rows, seconds, rows^2 and rows x seconds.
  double n_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
  double offset_ = 1;
  double slope_ = 1.0 / 16;
  std::array<Distance, kMostRows + 1> distances_{};
  double seconds_ = 0;  // of recent rounds, older ones counting less
  double tokens_ = 0;
};

}  // namespace agentkv
