// Sets of tokens as bits.
#include <limits>
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

void allowed_tokens_are_counted_and_listed() {
  std::vector<std::uint32_t> mask(3);
  std::vector<Token> tokens{7};
  list_allowed(mask, tokens);
  CHECK(tokens.empty());
  mask = {5, 1u << 31, 1};
  CHECK_EQ(count_allowed(mask), 4u);
  list_allowed(mask, tokens);
  CHECK(tokens == std::vector<Token>({0, 2, 63, 64}));
}

void scores_of_forbidden_tokens_are_as_low_as_can_be() {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  for (const std::size_t vocab : {31u, 32u, 70u, 96u}) {
    std::vector<float> scores(vocab), out(vocab, 7.0f);
    std::vector<std::uint32_t> mask(mask_words(static_cast<std::int32_t>(vocab)));
    for (std::size_t i = 0; i < vocab; ++i) {
      scores[i] = static_cast<float>(i);
      if (i % 3 == 0 || (i >= 32 && i < 64)) mask[i / 32] |= 1u << i % 32;  // a word of both, one of ones, one of zeros
    }
    if (mask.size() > 2) mask[2] = 0;
    apply_mask(mask, scores, out);
    for (std::size_t i = 0; i < vocab; ++i) CHECK_EQ(out[i], allows(mask, static_cast<Token>(i)) ? scores[i] : kLowest);
    apply_mask(mask, scores, scores);
    CHECK(scores == out);
  }
}

}  // namespace
}  // namespace agentkv

int main() {
  using namespace agentkv;
  a_mask_has_a_bit_per_token_and_one_more();
  allowed_tokens_are_counted_and_listed();
  scores_of_forbidden_tokens_are_as_low_as_can_be();
}
