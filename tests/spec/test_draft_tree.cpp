// The most likely tokens of a row, and trees that grow from them.
#include <cmath>
#include <limits>
#include <random>

#include "core/errors.h"
#include "cpp/check.h"
#include "spec/draft_tree.h"
#include "spec/likely_tokens.h"
#include "spec/naive_draft.h"

namespace agentkv::testing {
namespace {

void test_likely_tokens() {
  std::mt19937_64 random(1);
  LikelyTokens likely;
  for (const int vocab : {1, 2, 5, 63, 64, 65, 1000, 1024, 4099, 151936}) {
    for (const int k : {1, 3, 8, 40}) {
      std::vector<float> row(static_cast<std::size_t>(vocab));
      // Few values, so that many are equal.
      for (float& x : row) x = static_cast<float>(random() % (vocab > 100 ? 5000 : 7)) / 300.0f;
      double mass = 0;
      for (const float x : row) mass += std::exp(static_cast<double>(x));
      std::vector<Token> order(row.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](Token a, Token b) {
        return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
      });
      const auto found = likely.of(row, k);
      CHECK(found.size() == std::min(row.size(), static_cast<std::size_t>(k)));
      for (std::size_t i = 0; i < found.size(); ++i) {
        CHECK_EQ(found[i].token, order[i]);
        const double p = std::exp(static_cast<double>(row[static_cast<std::size_t>(order[i])])) / mass;
        CHECK(std::abs(static_cast<double>(found[i].probability) - p) < 1e-5 * p);
        CHECK(found[i].probability > 0 && found[i].probability <= 1);
      }
    }
  }
}

void test_rows_that_are_no_distribution() {
  constexpr float inf = std::numeric_limits<float>::infinity();
  LikelyTokens likely;
  CHECK(likely.of(std::vector<float>{}, 3).empty());
  CHECK(likely.of(std::vector<float>{-inf, -inf}, 3).empty());
  CHECK(likely.of(std::vector<float>{1, inf}, 3).empty());
  CHECK(likely.of(std::vector<float>{1, std::nanf("")}, 3).empty());
  const std::vector<float> masked{-inf, 2, -inf, 300};
  const auto found = likely.of(masked, 3);
  CHECK_EQ(found.size(), 2u);
  CHECK_EQ(found[0].token, 3);
  CHECK_EQ(found[0].probability, 1.0f);
  CHECK_EQ(found[1].token, 1);
  CHECK(found[1].probability > 0);
}

void test_growth() {
  // Roots a 0.6, b 0.3, c 0.1; under a: d 0.5, e 0.4; under b: f 0.9.
  DraftTree tree;
  tree.grow(-1, 0, std::vector<LikelyToken>{{10, 0.6f}, {11, 0.3f}, {12, 0.1f}});
  const auto level = tree.choose(2, 0, 0);
  CHECK((Tokens(level.begin(), level.end()) == Tokens{0, 1}));
  CHECK_EQ(tree.parent_place(0), -1);
  tree.grow(0, 0, std::vector<LikelyToken>{{13, 0.5f}, {14, 0.4f}});
  tree.grow(1, 1, std::vector<LikelyToken>{{15, 0.9f}});
  const auto next = tree.choose(2, 0, 0);
  CHECK((Tokens(next.begin(), next.end()) == Tokens{3, 5}));
  CHECK_EQ(tree.place(3), 2);
  CHECK_EQ(tree.parent_place(5), 1);
  CHECK_EQ(tree.row(5), 1);
  CHECK_EQ(tree.child_that_ran(-1, 11), 1);
  CHECK_EQ(tree.child_that_ran(-1, 12), -1);
  CHECK_EQ(tree.child_that_ran(1, 15), 5);
  Draft draft;
  tree.best(4, draft);
  CHECK((draft.tokens == Tokens{10, 11, 13, 15}));
  CHECK((draft.parents == std::vector<std::int32_t>{-1, -1, 0, 1}));
  CHECK((draft.confidence == std::vector<float>{0.6f, 0.3f, 0.5f, 0.9f}));
  check_draft(draft, 16);
}

void test_what_is_hardly_ever_reached_is_not_run() {
  DraftTree tree;
  tree.grow(-1, 0, std::vector<LikelyToken>{{1, 0.5f}, {2, 0.3f}, {3, 0.1f}});
  CHECK_EQ(tree.choose(3, 0.2f, 0).size(), 2u);
  tree.grow(1, 0, std::vector<LikelyToken>{{1, 0.6f}});
  CHECK(tree.choose(3, 0.2f, 0).empty());
  Draft draft;
  tree.best(9, draft);
  CHECK_EQ(draft.size(), 4u);  // they are guesses all the same
}

void test_a_level_that_is_hardly_reached_is_not_drafted() {
  DraftTree tree;
  tree.grow(-1, 0, std::vector<LikelyToken>{{1, 0.3f}, {2, 0.2f}});
  CHECK(tree.choose(2, 0.1f, 0.6f).empty());
  tree.grow(-1, 0, std::vector<LikelyToken>{{3, 0.4f}, {4, 0.3f}});
  CHECK_EQ(tree.choose(2, 0.1f, 0.6f).size(), 2u);
}

void test_a_child_as_likely_as_its_parent_comes_after_it() {
  DraftTree tree;
  tree.grow(-1, 0, std::vector<LikelyToken>{{1, 1.0f}});
  for (std::int32_t node = 0; node < 5; ++node) {
    CHECK_EQ(tree.choose(3, 0, 0).size(), 1u);
    tree.grow(node, 0, std::vector<LikelyToken>{{1, 1.0f}});
  }
  Draft draft;
  tree.best(4, draft);
  CHECK((draft.parents == std::vector<std::int32_t>{-1, 0, 1, 2}));
}

}  // namespace
}  // namespace agentkv::testing

int main() {
  using namespace agentkv::testing;
  test_likely_tokens();
  test_rows_that_are_no_distribution();
  test_growth();
  test_what_is_hardly_ever_reached_is_not_run();
  test_a_level_that_is_hardly_reached_is_not_drafted();
  test_a_child_as_likely_as_its_parent_comes_after_it();
}
