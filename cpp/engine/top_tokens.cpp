#include "engine/top_tokens.h"

#include <algorithm>
#include <limits>

#include "engine/softmax.h"

namespace agentkv {

std::span<const TopToken> TopTokens::of(std::span<const float> row, std::int32_t k) {
  best_.clear();
  if (row.empty() || k < 1) return best_;
  maxima_.resize(maxima_groups(row.size()));
  group_maxima(row, maxima_);

  // Few groups have a maximum above the k-th best so far.
  const auto wanted = static_cast<std::size_t>(k);
  float floor = -std::numeric_limits<float>::infinity();
  for (std::size_t group = 0; group < maxima_.size(); ++group) {
    if (!(maxima_[group] > floor)) continue;
    const std::size_t end = std::min(row.size(), (group + 1) * kMaximaGroup);
    for (std::size_t i = group * kMaximaGroup; i < end; ++i) {
      if (!(row[i] > floor)) continue;
      if (best_.size() == wanted) best_.pop_back();
      const auto at = std::find_if(best_.begin(), best_.end(), [&](const TopToken& t) { return t.logit < row[i]; });
      best_.insert(at, {static_cast<Token>(i), row[i]});
      if (best_.size() == wanted) floor = best_.back().logit;
    }
  }
  return best_;
}

}  // namespace agentkv
