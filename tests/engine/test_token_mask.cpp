// Sets of tokens as bits.
#include <vector>

#include "cpp/check.h"
#include "engine/token_mask.h"

namespace agentkv {
namespace {

void a_mask_has_a_bit_per_token_and_one_more() {
  CHECK_EQ(mask_words(31), 1u);
  CHECK_EQ(mask_words(32), 2u);
  std::vector<std::uint32_t> mask(mask_words(64));
  CHECK(!is_complete(mask, 64));
  mask[2] = 1;
  CHECK(is_complete(mask, 64));
  CHECK(!is_complete({}, 64));
}

void allowed_tokens_are_listed() {
  std::vector<std::uint32_t> mask(3);
  std::vector<Token> tokens{7};
  list_allowed(mask, tokens);
  CHECK(tokens.empty());
  mask = {5, 1u << 31, 1};
  list_allowed(mask, tokens);
  CHECK(tokens == std::vector<Token>({0, 2, 63, 64}));
}

}  // namespace
}  // namespace agentkv

int main() {
  using namespace agentkv;
  a_mask_has_a_bit_per_token_and_one_more();
  allowed_tokens_are_listed();
}
