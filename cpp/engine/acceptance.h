// How often drafted tokens turn out right: what a drafter's confidence is worth, learnt as drafts are verified.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft.h"

namespace agentkv {

// Rates of acceptance by what was known of a node beforehand: its confidence, or where the drafter gave none, its
// depth. A node counts where its parent was accepted.
class Acceptance {
 public:
  // `pool` is what all branches of a drafter have shown; a branch's own rates start from there. It must outlive this.
  explicit Acceptance(Acceptance* pool = nullptr) : pool_(pool) {}

  // [n] how likely each node is accepted, its ancestors included.
  void path_probabilities(const Draft& draft, std::vector<float>& out) const;

  // accepted: the chain that was, from a root down.
  void learn(const Draft& draft, std::span<const std::int32_t> accepted);

 private:
  static constexpr std::size_t kBins = 16;  // of each kind

  struct Rate {
    float tried = 0;
    float accepted = 0;

    void count(bool right);
  };

  double rate(std::size_t bin, double guess) const;
  void count(std::size_t bin, bool right);

  Acceptance* pool_;
  std::array<Rate, 2 * kBins> rates_{};
  mutable std::vector<std::int32_t> depths_;  // scratch
};

}  // namespace agentkv
