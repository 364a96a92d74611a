// What rides under a constraint: forced tokens, and what it makes of a drafter's guess.
#include <vector>

#include "cpp/check.h"
#include "engine/constrained_draft.h"

namespace agentkv {
namespace {

using Ints = std::vector<std::int32_t>;

void a_guess_follows_the_last_forced_token() {
  ConstrainedDraft ride(Ints{5, 6});
  ride.follow_with({.tokens = {8, 4, 3}, .parents = {-1, -1, 1}, .confidence = {.5f, .4f, .3f}});
  CHECK_EQ(ride.forced(), 2u);
  CHECK(ride.draft.tokens == Ints({5, 6, 8, 4, 3}));
  CHECK(ride.draft.parents == Ints({-1, 0, 1, 1, 3}));
  CHECK(ride.draft.confidence == std::vector<float>({1, 1, .5f, .4f, .3f}));
  CHECK(ride.guessed().tokens == Ints({8, 4, 3}));
  CHECK(ride.guessed().parents == Ints({-1, -1, 1}));
  CHECK(ride.guessed().confidence == std::vector<float>({.5f, .4f, .3f}));
  CHECK(ride.guessed_of(Ints{0, 1, 3, 4}) == Ints({1, 2}));
  ride.follow_with({.tokens = {9}, .parents = {-1}, .confidence = {}});
  CHECK(ride.draft.tokens == Ints({5, 6, 9}));
  CHECK(ride.draft.confidence.empty());
  ride.follow_with({});
  CHECK(ride.draft.tokens == Ints({5, 6}));
}

void what_may_not_follow_is_left_out_and_what_must_is_added() {
  //  5 - 8 - 7     9 may not follow; 1 and then 2 must follow 7, and 3 must follow 4
  //    \ 9 - 6
  //    \ 4
  ConstrainedDraft ride(Ints{5});
  ride.follow_with({.tokens = {8, 9, 7, 6, 4}, .parents = {-1, -1, 0, 1, -1}, .confidence = {.9f, .8f, .7f, .6f, .5f}});
  DraftTurn turn{.draft = &ride.draft};
  turn.allowed = {0, 1, 3, 5};
  turn.added = {1, 2, 3};
  turn.added_parents = {3, 6, 5};
  ConstrainedDraft flat = ride;
  flat.grow(turn, 3);
  CHECK(flat.draft.tokens == Ints({5, 8, 7, 4, 3}));
  ride.grow(turn, 9);
  CHECK(ride.draft.tokens == Ints({5, 8, 7, 4, 1, 2, 3}));
  CHECK(ride.draft.parents == Ints({-1, 0, 1, 0, 2, 4, 3}));
  CHECK(ride.draft.confidence == std::vector<float>({1, .9f, .7f, .5f, 1, 1, 1}));
  CHECK(ride.guessed().tokens == Ints({8, 7, 4, 1, 2, 3}));
  CHECK(ride.guessed().is_forced(3) && !ride.guessed().is_forced(2));
}

void nothing_is_added_to_what_may_not_follow() {
  ConstrainedDraft ride(Ints{});
  ride.follow_with({.tokens = {5, 6}, .parents = {-1, 0}, .confidence = {}});
  DraftTurn turn{.draft = &ride.draft};
  turn.added = {7};
  turn.added_parents = {1};
  ride.grow(turn, 9);
  CHECK(ride.draft.empty());
}

}  // namespace
}  // namespace agentkv

int main() {
  using namespace agentkv;
  a_guess_follows_the_last_forced_token();
  what_may_not_follow_is_left_out_and_what_must_is_added();
  nothing_is_added_to_what_may_not_follow();
}
