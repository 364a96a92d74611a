#include "engine/acceptance.h"

#include <algorithm>

namespace agentkv {

// The rate stays, but weighs less; one observation is left of it.
void Acceptance::Rate::fade(double memory) {
  if (tried <= 1) return;
  tried *= 1 - 1 / memory;
  accepted *= 1 - 1 / memory;
}

// Older observations fade, the prior among them.
void Acceptance::Rate::count(bool right, double memory) {
  const double kept = std::min(1.0, memory / (tried + 1));
  tried = kept * (tried + 1);
  accepted = kept * (accepted + (right ? 1 : 0));
}

Acceptance::Acceptance(const PolicyOptions& options, const AcceptanceRates& prior) : options_(options) {
  const auto start = [&](const std::vector<double>& measured, std::size_t index, double guess) {
    const bool known = index < measured.size();
    const double weight = known ? options.measured_weight : options.guess_weight;
    return Rate{weight, weight * (known ? measured[index] : guess)};
  };
  for (std::size_t i = 0; i < levels_.size(); ++i) levels_[i] = start(prior.levels, i, options.level_acceptance);
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const double confidence = (static_cast<double>(i) + 0.5) / AcceptanceRates::kBins;
    nodes_[i] =
        i < AcceptanceRates::kBins ? start(prior.calibration, i, confidence) : start({}, 0, options.node_acceptance);
  }
}

std::size_t Acceptance::bin(const Draft& draft, std::size_t node) const {
  if (draft.confidence.empty()) {
    const auto level = static_cast<std::size_t>(depths_[node]) - 1;
    return AcceptanceRates::kBins + std::min(level, AcceptanceRates::kLevels - 1);
  }
  const auto index = static_cast<std::size_t>(draft.confidence[node] * static_cast<float>(AcceptanceRates::kBins));
  return std::min(index, AcceptanceRates::kBins - 1);
}

void Acceptance::path_probabilities(const Draft& draft, std::vector<float>& out) const {
  draft.node_depths(depths_);
  out.resize(draft.size());
  for (std::size_t node = 0; node < draft.size(); ++node) {
    const std::int32_t parent = draft.parents[node];
    const double above = parent < 0 ? 1.0 : static_cast<double>(out[static_cast<std::size_t>(parent)]);
    out[node] = static_cast<float>(above * nodes_[bin(draft, node)].value());
  }
}

void Acceptance::learn_nodes(const Draft& draft, std::span<const std::int32_t> accepted) {
  draft.node_depths(depths_);
  for (std::size_t node = 0; node < draft.size(); ++node) {
    const auto above = static_cast<std::size_t>(depths_[node]) - 1;
    const bool reached = above == 0 || (above <= accepted.size() && accepted[above - 1] == draft.parents[node]);
    if (!reached) continue;
    const bool right = above < accepted.size() && accepted[above] == static_cast<std::int32_t>(node);
    nodes_[bin(draft, node)].count(right, options_.memory);
  }
}

void Acceptance::fade() {
  for (Rate& rate : levels_) rate.fade(options_.memory);
  for (Rate& rate : nodes_) rate.fade(options_.memory);
}

void Acceptance::learn_levels(std::int32_t drafted, std::int32_t accepted) {
  const auto reached = static_cast<std::size_t>(std::min(drafted, accepted + 1));
  for (std::size_t level = 0; level < std::min(reached, levels_.size()); ++level) {
    levels_[level].count(static_cast<std::int32_t>(level) < accepted, options_.memory);
  }
}

AcceptanceRates Acceptance::rates() const {
  AcceptanceRates rates;
  for (const Rate& rate : levels_) rates.levels.push_back(rate.value());
  for (std::size_t i = 0; i < AcceptanceRates::kBins; ++i) rates.calibration.push_back(nodes_[i].value());
  return rates;
}

}  // namespace agentkv
