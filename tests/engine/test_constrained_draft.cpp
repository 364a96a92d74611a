// What rides under a constraint: forced tokens, and what is left of a drafter's guess.
#include <vector>

#include "cpp/check.h"
#include "engine/constrained_draft.h"

namespace agentkv {
namespace {

using Ints = std::vector<std::int32_t>;

void forced_tokens_come_first_and_are_merged_with_those_that_were_guessed() {
  //          5 - 6 - 7 - 8     5, 6 and 7 are forced; 9 may not follow
  //            \ 9    \ 4
  const Draft guess{
      .tokens = {5, 6, 9, 7, 8, 4}, .parents = {-1, 0, 0, 1, 3, 3}, .confidence = {.9f, .8f, .7f, .6f, .5f, .4f}};
  const Ints allowed{0, 1, 3, 4, 5};
  const Ints forced{5, 6, 7};
  const ConstrainedDraft ride(forced, &guess, allowed, 8);
  CHECK(ride.draft.tokens == Ints({5, 6, 7, 8, 4}));
  CHECK(ride.draft.parents == Ints({-1, 0, 1, 2, 2}));
  CHECK(ride.draft.confidence == std::vector<float>({1, 1, 1, .5f, .4f}));
  CHECK(ride.guessed().tokens == Ints({8, 4}));
  CHECK(ride.guessed().parents == Ints({-1, -1}));
  CHECK(ride.guessed_of(Ints{0, 1, 2, 4}) == Ints({1}));
}

void what_disagrees_with_a_forced_token_is_left_out_with_its_children() {
  const Draft guess{.tokens = {5, 6, 7}, .parents = {-1, 0, 1}, .confidence = {}};
  const ConstrainedDraft ride(Ints{5, 8}, &guess, Ints{0, 1, 2}, 8);
  CHECK(ride.draft.tokens == Ints({5, 8}));
  CHECK(ride.guessed().empty());
}

void a_guess_takes_no_more_than_its_room() {
  const Draft guess{.tokens = {5, 6, 7}, .parents = {-1, -1, 1}, .confidence = {}};
  CHECK(ConstrainedDraft(Ints{}, &guess, Ints{0, 1, 2}, 2).draft.tokens == Ints({5, 6}));
  CHECK(ConstrainedDraft(Ints{}, &guess, Ints{1, 2}, 2).draft.parents == Ints({-1, 0}));
  CHECK(ConstrainedDraft(Ints{}, nullptr, Ints{}, 2).draft.empty());
}

}  // namespace
}  // namespace agentkv

int main() {
  using namespace agentkv;
  forced_tokens_come_first_and_are_merged_with_those_that_were_guessed();
  what_disagrees_with_a_forced_token_is_left_out_with_its_children();
  a_guess_takes_no_more_than_its_room();
}
