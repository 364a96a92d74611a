// Expected acceptance: how likely the target accepts what a drafter proposes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft.h"
#include "engine/policy_options.h"

namespace agentkv {

// Acceptance rates of a drafter, in [0, 1]. Empty vectors: not measured.
struct AcceptanceRates {
  static constexpr std::size_t kLevels = 16;  // no draft is deeper
  static constexpr std::size_t kBins = 16;    // of equal width over confidences in [0, 1]

  std::vector<double> levels = {};       // [at most kLevels] of a level where the levels above it were accepted
  std::vector<double> calibration = {};  // [at most kBins] of nodes by their confidence where their parent was accepted
};

// Learnt for one drafter over all its branches, starting from a prior.
class Acceptance {
 public:
  explicit Acceptance(const PolicyOptions& options, const AcceptanceRates& prior = {});

  // Before drafting: how often a level is accepted where the levels above it were.
  double level(std::size_t index) const { return levels_[index].value(); }
  // After drafting: [n] how likely each node is accepted, its ancestors included. Judged by the node's confidence, or
  // by its depth where the drafter gives none.
  void path_probabilities(const Draft& draft, std::vector<float>& out) const;

  // A draft was verified; accepted: the chain of nodes that was, from a root down.
  void learn_nodes(const Draft& draft, std::span<const std::int32_t> accepted);
  // A round went by without drafts: what is known of them grows old.
  void fade();
  // Of `drafted` levels, the first `accepted` were.
  void learn_levels(std::int32_t drafted, std::int32_t accepted);

  AcceptanceRates rates() const;  // as learnt so far

 private:
  struct Rate {
    double tried = 0;
    double accepted = 0;

    double value() const { return accepted / tried; }
    void fade(double memory);
    void count(bool right, double memory);
  };

  std::size_t bin(const Draft& draft, std::size_t node) const;

  const PolicyOptions& options_;
  std::array<Rate, AcceptanceRates::kLevels> levels_{};
  // Of nodes: by confidence, then by depth.
  std::array<Rate, AcceptanceRates::kBins + AcceptanceRates::kLevels> nodes_{};
  mutable std::vector<std::int32_t> depths_;  // scratch: of the draft's nodes
};

}  // namespace agentkv
