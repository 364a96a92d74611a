#include "engine/token_mask.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace agentkv {

std::size_t count_allowed(TokenMask mask) {
  std::size_t count = 0;
  for (const std::uint32_t word : mask) count += static_cast<std::size_t>(std::popcount(word));
  return count;
}

void list_allowed(TokenMask mask, std::vector<Token>& tokens) {
  tokens.clear();
  for (std::size_t word = 0; word < mask.size(); ++word) {
    for (std::uint32_t left = mask[word]; left != 0; left &= left - 1) {
      tokens.push_back(static_cast<Token>(word * 32) + std::countr_zero(left));
    }
  }
}

void apply_mask(TokenMask mask, std::span<const float> scores, std::span<float> out) {
  constexpr float kForbidden = -std::numeric_limits<float>::infinity();
  for (std::size_t begin = 0; begin < scores.size(); begin += 32) {
    const std::size_t n = std::min<std::size_t>(32, scores.size() - begin);
    const std::uint32_t word = mask[begin / 32];
    const float* from = scores.data() + begin;
    float* to = out.data() + begin;
    if (word == 0) {
      std::fill_n(to, n, kForbidden);
      continue;
    }
    if (to != from) std::copy_n(from, n, to);
    for (std::uint32_t left = ~word; left != 0; left &= left - 1) {
      const auto i = static_cast<std::size_t>(std::countr_zero(left));
      if (i < n) to[i] = kForbidden;
    }
  }
}

}  // namespace agentkv
