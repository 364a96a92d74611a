#include "engine/token_mask.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace agentkv {

std::optional<Token> only_token(TokenMask mask) {
  std::optional<Token> only;
  for (std::size_t word = 0; word < mask.size(); ++word) {
    if (mask[word] == 0) continue;
    if (only || !std::has_single_bit(mask[word])) return std::nullopt;
    only = static_cast<Token>(word * 32) + std::countr_zero(mask[word]);
  }
  return only;
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
    } else if (word == ~0u) {
      if (to != from) std::copy_n(from, n, to);
    } else {
      for (std::size_t i = 0; i < n; ++i) to[i] = word >> i & 1u ? from[i] : kForbidden;
    }
  }
}

}  // namespace agentkv
