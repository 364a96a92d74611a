// A set of tokens as bits, 32 to a word: which may come next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/types.h"

namespace agentkv {

using TokenMask = std::span<const std::uint32_t>;  // [mask_words(vocab_size)]; empty: any token may come

// One bit more than tokens: the last says that nothing may come, because what was asked for is complete.
inline constexpr std::size_t mask_words(std::int32_t vocab_size) {
  return static_cast<std::size_t>(vocab_size) / 32 + 1;
}

inline bool allows(TokenMask mask, Token token) {
  const auto bit = static_cast<std::size_t>(token);
  return mask[bit / 32] >> (bit % 32) & 1u;
}

inline bool is_complete(TokenMask mask, std::int32_t vocab_size) { return !mask.empty() && allows(mask, vocab_size); }

// The tokens that a mask allows, ascending.
void list_allowed(TokenMask mask, std::vector<Token>& tokens);

}  // namespace agentkv
