// The highest of a row of logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/types.h"

namespace agentkv {

struct TopToken {
  Token token;
  float logit;
};

class TopTokens {
 public:
  // The k highest, best first, the lower id first on ties; fewer where the row has fewer above -inf. NaN is left out.
  // Valid until the next call.
  std::span<const TopToken> of(std::span<const float> row, std::int32_t k);

 private:
  std::vector<float> maxima_;  // scratch
  std::vector<TopToken> best_;
};

}  // namespace agentkv
