#include "spec/likely_tokens.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/softmax.h"

namespace agentkv {

std::span<const LikelyToken> LikelyTokens::of(std::span<const float> logits, std::int32_t k) {
  likely_.clear();
  if (logits.empty() || k < 1) return likely_;
  const double log_sum_exp = summarise(logits).log_sum_exp;
  if (!std::isfinite(log_sum_exp)) return likely_;
  for (const auto [token, logit] : top_.of(logits, k)) {
    const auto p = static_cast<float>(std::exp(static_cast<double>(logit) - log_sum_exp));
    likely_.push_back({token, std::clamp(p, std::numeric_limits<float>::min(), 1.0f)});
  }
  return likely_;
}

}  // namespace agentkv
