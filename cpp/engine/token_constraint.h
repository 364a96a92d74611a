// Which tokens may come next.
#pragma once

#include <span>

#include "engine/types.h"

namespace agentkv {

// Asked before every draw, whether plain decoding or the verification of a draft draws: a draft cannot lead past it.
// One object may serve several branches, on the thread of the step loop.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Sets the scores [vocab_size] of tokens that may not follow `history`, the branch's whole log, to -inf.
  virtual void mask(std::span<const Token> history, std::span<float> scores) = 0;
};

}  // namespace agentkv
