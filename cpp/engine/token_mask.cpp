#include "engine/token_mask.h"

#include <bit>

namespace agentkv {

void list_allowed(TokenMask mask, std::vector<Token>& tokens) {
  tokens.clear();
  for (std::size_t word = 0; word < mask.size(); ++word) {
    for (std::uint32_t left = mask[word]; left != 0; left &= left - 1) {
      tokens.push_back(static_cast<Token>(word * 32) + std::countr_zero(left));
    }
  }
}

}  // namespace agentkv
