#include "spec/top_tokens.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/softmax.h"

namespace agentkv {

std::span<const LikelyToken> TopTokens::of(std::span<const float> logits, std::int32_t k) {
  best_.clear();
  if (logits.empty() || k < 1) return best_;
  const double log_sum_exp = summarise(logits).log_sum_exp;
  if (!std::isfinite(log_sum_exp)) return best_;
  maxima_.resize(maxima_groups(logits.size()));
  group_maxima(logits, maxima_);

  // `probability` holds the logit until the end. Few groups have a maximum above the k-th best so far.
  const auto wanted = static_cast<std::size_t>(k);
  float floor = -std::numeric_limits<float>::infinity();
  for (std::size_t group = 0; group < maxima_.size(); ++group) {
    if (!(maxima_[group] > floor)) continue;
    const std::size_t end = std::min(logits.size(), (group + 1) * kMaximaGroup);
    for (std::size_t i = group * kMaximaGroup; i < end; ++i) {
      if (!(logits[i] > floor)) continue;
      if (best_.size() == wanted) best_.pop_back();
      const auto at =
          std::find_if(best_.begin(), best_.end(), [&](const LikelyToken& t) { return t.probability < logits[i]; });
      best_.insert(at, {static_cast<Token>(i), logits[i]});
      if (best_.size() == wanted) floor = best_.back().probability;
    }
  }
  for (LikelyToken& likely : best_) {
    const auto p = static_cast<float>(std::exp(static_cast<double>(likely.probability) - log_sum_exp));
    likely.probability = std::clamp(p, std::numeric_limits<float>::min(), 1.0f);
  }
  return best_;
}

}  // namespace agentkv
