// The most likely tokens of a row of logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/top_tokens.h"

namespace agentkv {

struct LikelyToken {
  Token token;
  float probability;  // in (0, 1]
};

class LikelyTokens {
 public:
  // The k most likely tokens, best first, the lower id first on ties; fewer where the row has fewer, none where it is
  // no distribution. Valid until the next call.
  std::span<const LikelyToken> of(std::span<const float> logits, std::int32_t k);

 private:
  TopTokens top_;
  std::vector<LikelyToken> likely_;
};

}  // namespace agentkv
