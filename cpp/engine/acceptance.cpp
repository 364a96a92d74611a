#include "engine/acceptance.h"

#include <algorithm>

namespace agentkv {
namespace {

constexpr float kMemory = 64;       // nodes after which older ones count half
constexpr double kGuessWeight = 2;  // nodes that an untested guess is worth
constexpr double kPoolWeight = 6;   // nodes that the other branches' rate is worth
constexpr double kUnknown = 0.5;    // guess where the drafter gave no confidence

// Calls visit(node, bin, guess) for every node in order.
template <class Visit>
void for_bins(const Draft& draft, std::size_t n_bins, std::vector<std::int32_t>& depths, Visit&& visit) {
  depths.resize(draft.size());
  for (std::size_t node = 0; node < draft.size(); ++node) {
    const std::int32_t parent = draft.parents[node];
    depths[node] = parent < 0 ? 0 : depths[static_cast<std::size_t>(parent)] + 1;
    if (draft.confidence.empty()) {
      visit(node, n_bins + std::min(static_cast<std::size_t>(depths[node]), n_bins - 1), kUnknown);
    } else {
      const double confidence = draft.confidence[node];
      visit(node, std::min(static_cast<std::size_t>(confidence * static_cast<double>(n_bins)), n_bins - 1), confidence);
    }
  }
}

}  // namespace

void Acceptance::Rate::count(bool right) {
  if (tried >= kMemory) {
    tried /= 2;
    accepted /= 2;
  }
  tried += 1;
  accepted += right ? 1 : 0;
}

double Acceptance::rate(std::size_t bin, double guess) const {
  const Rate& own = rates_[bin];
  const double prior = pool_ ? pool_->rate(bin, guess) : guess;
  const double weight = pool_ ? kPoolWeight : kGuessWeight;
  return (own.accepted + weight * prior) / (own.tried + weight);
}

void Acceptance::count(std::size_t bin, bool right) {
  rates_[bin].count(right);
  if (pool_) pool_->count(bin, right);
}

void Acceptance::path_probabilities(const Draft& draft, std::vector<float>& out) const {
  out.resize(draft.size());
  for_bins(draft, kBins, depths_, [&](std::size_t node, std::size_t bin, double guess) {
    const std::int32_t parent = draft.parents[node];
    const double above = parent < 0 ? 1.0 : static_cast<double>(out[static_cast<std::size_t>(parent)]);
    out[node] = static_cast<float>(above * rate(bin, guess));
  });
}

void Acceptance::learn(const Draft& draft, std::span<const std::int32_t> accepted) {
  for_bins(draft, kBins, depths_, [&](std::size_t node, std::size_t bin, double) {
    const auto depth = static_cast<std::size_t>(depths_[node]);
    const bool reached = depth == 0 || (depth <= accepted.size() && accepted[depth - 1] == draft.parents[node]);
    if (reached) count(bin, depth < accepted.size() && accepted[depth] == static_cast<std::int32_t>(node));
  });
}

}  // namespace agentkv
