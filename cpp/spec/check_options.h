// Checks of the arguments that drafters are made from.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "core/errors.h"
#include "core/message.h"
#include "spec/draft_round.h"

namespace agentkv {

inline void check_range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) {
    throw InvalidDrafter(error_text(name, " is ", value, ", but it must be in [", low, ", ", high, "]"));
  }
}

template <class Part>
std::shared_ptr<Part> checked(std::shared_ptr<Part> part, const char* name) {
  if (!part) throw InvalidDrafter(error_text("the drafter needs a ", name));
  return part;
}

inline TreeOptions checked(TreeOptions options) {
  if (options.width < 1 || options.top_k < 1) {
    throw InvalidDrafter(error_text("the drafter's width is ", options.width, " and its top_k ", options.top_k,
                                    ", but both must be at least 1"));
  }
  if (!(options.min_reach >= 0 && options.min_reach < 1)) {
    throw InvalidDrafter(error_text("the drafter's min_reach is ", options.min_reach, ", but must be in [0, 1)"));
  }
  if (options.vocab_size < 0) {
    throw InvalidDrafter(error_text("the drafter's vocab_size is ", options.vocab_size, ", but must be at least 0"));
  }
  if (options.depth < 0) {
    throw InvalidDrafter(error_text("the drafter's depth is ", options.depth, ", but must be at least 0"));
  }
  return options;
}

}  // namespace agentkv
