// What speculation learns: the cost of forwards, the worth of confidence, how deep a draft pays.
#include <cmath>
#include <random>

#include "cpp/check.h"
#include "engine/forward_cost.h"
#include "engine/pace.h"

namespace agentkv::testing {
namespace {

bool near(double a, double b, double tolerance) { return std::abs(a - b) <= tolerance; }

void cost_is_a_line_from_two_rows_on() {
  ForwardCost cost;
  CHECK(cost.seconds(2) > cost.seconds(1));  // a guess
  cost.learn(40, 5.0);
  CHECK(cost.seconds(1) < 2.5);  // still one, of the same shape
  for (int i = 0; i < 200; ++i) {
    cost.learn(1, 1.0);
    cost.learn(3, 2.5);
    cost.learn(11, 4.5);
  }
  CHECK(near(cost.seconds(1), 1.0, 1e-6));
  CHECK(near(cost.seconds(7), 3.5, 0.2));
  CHECK(near(cost.row_seconds(), 0.25, 0.05));
  CHECK(near(cost.seconds(19), 6.5, 0.7));
}

void a_tile_more_is_seen_off_the_line() {
  ForwardCost cost;
  for (int i = 0; i < 100; ++i) {
    for (const std::size_t rows : {2u, 4u, 6u, 8u, 9u, 12u}) cost.learn(rows, rows <= 8 ? 1.0 : 2.0);
  }
  CHECK(near(cost.seconds(8), 1.0, 0.15));
  CHECK(near(cost.seconds(9), 2.0, 0.15));
}

void speed_is_tokens_over_time() {
  ForwardCost cost;
  CHECK_EQ(cost.token_seconds(), cost.seconds(1));
  for (int i = 0; i < 100; ++i) cost.learn_speed(3.0, 2);
  CHECK(near(cost.token_seconds(), 1.5, 1e-9));
}

void cost_follows_but_not_an_interruption() {
  ForwardCost cost;
  for (int i = 0; i < 40; ++i) cost.learn(4, 1.0);
  cost.learn(4, 1000.0);
  CHECK(cost.seconds(4) < 1.25);
  for (int i = 0; i < 200; ++i) cost.learn(4, 2.0);
  CHECK(near(cost.seconds(4), 2.0, 0.1));
  for (int i = 0; i < 20; ++i) cost.learn(1, 0.5);
  cost.learn(1, 1000.0);
  CHECK(cost.seconds(1) < 0.7);
}

// A chain of two whose nodes say 0.9, and come true with other odds.
void confidence_is_calibrated() {
  std::mt19937 random(1);
  std::bernoulli_distribution first(0.3);
  std::bernoulli_distribution second(0.6);
  Acceptance pool;
  Acceptance own(&pool);
  const Draft draft{.tokens = {1, 2}, .parents = {-1, 0}, .confidence = {0.9f, 0.4f}};
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::int32_t> accepted;
    if (first(random)) accepted.push_back(0);
    if (!accepted.empty() && second(random)) accepted.push_back(1);
    own.learn(draft, accepted);
  }
  std::vector<float> probabilities;
  own.path_probabilities(draft, probabilities);
  CHECK(near(static_cast<double>(probabilities[0]), 0.3, 0.15));
  CHECK(near(static_cast<double>(probabilities[1]) / static_cast<double>(probabilities[0]), 0.6, 0.2));
  Acceptance other(&pool);  // a new branch starts from what the others have shown
  other.path_probabilities(draft, probabilities);
  CHECK(near(static_cast<double>(probabilities[0]), 0.3, 0.15));
}

void without_confidence_depth_counts() {
  Acceptance own;
  const Draft draft{.tokens = {1, 2}, .parents = {-1, 0}};
  const std::vector<std::int32_t> root{0};
  for (int i = 0; i < 50; ++i) own.learn(draft, root);
  std::vector<float> probabilities;
  own.path_probabilities(draft, probabilities);
  CHECK(probabilities[0] > 0.9f);
  CHECK(probabilities[1] < 0.1f);
}

constexpr TargetShare free_rows() {
  TargetShare share{};
  share.fill(1);
  return share;
}
constexpr TargetShare kTarget = free_rows();

// Rounds of a drafter whose levels cost `level` of a target's forward and come true with probability p each.
struct Round {
  int drafted = 0;
  int asked = 0;
};
Round play(double p, double level, int rounds, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::bernoulli_distribution right(p);
  DrafterPace pool;
  Pace pace(pool);
  Round sum;
  for (int i = 0; i < rounds; ++i) {
    pool.begin_round();
    const std::int32_t depth = pace.depth(12, kTarget);
    if (depth == 0) continue;
    ++sum.asked;
    sum.drafted += depth;
    pool.learn_cost(depth * level, depth, 1);
    std::int32_t accepted = 0;
    while (accepted < depth && right(random)) ++accepted;
    pace.learn(depth, accepted);
  }
  return sum;
}

void depth_follows_acceptance_and_cost() {
  const Round good = play(0.95, 0.05, 500);
  CHECK_EQ(good.asked, 500);
  CHECK(good.drafted > 7 * 500);
  const Round fair = play(0.6, 0.2, 500);
  CHECK(fair.asked > 400);
  CHECK(fair.drafted < 4 * 500);
}

void rows_that_cost_as_much_as_a_forward_are_not_drafted() {
  TargetShare dear{};
  for (std::size_t level = 0; level < dear.size(); ++level) dear[level] = 1.0 + static_cast<double>(level);
  DrafterPace pool;
  Pace pace(pool);
  int asked = 0;
  for (int i = 0; i < 1000; ++i) {
    pool.begin_round();
    const std::int32_t depth = pace.depth(6, dear);
    if (depth == 0) continue;
    ++asked;
    pool.learn_cost(depth * 0.05, depth, 1);
    pace.learn(depth, depth - 1);
  }
  CHECK(asked < 30);
}

void what_does_not_pay_is_left_and_tried_again() {
  const Round useless = play(0.0, 0.2, 2000);
  CHECK(useless.asked < 40);
  CHECK(useless.asked >= 6);
  CHECK(useless.drafted < 0.03 / 0.2 * 2000);
}

void it_comes_back_when_drafts_turn_good() {
  std::mt19937 random(1);
  DrafterPace pool;
  Pace pace(pool);
  int asked = 0;
  for (int i = 0; i < 3000; ++i) {
    const bool good = i >= 1000;
    pool.begin_round();
    const std::int32_t depth = pace.depth(6, kTarget);
    if (depth == 0) continue;
    pool.learn_cost(depth * 0.1, depth, 1);
    pace.learn(depth, good ? depth : 0);
    asked += i >= 2000;
  }
  CHECK(asked > 950);
}

}  // namespace
}  // namespace agentkv::testing

int main() {
  using namespace agentkv::testing;
  cost_is_a_line_from_two_rows_on();
  a_tile_more_is_seen_off_the_line();
  speed_is_tokens_over_time();
  cost_follows_but_not_an_interruption();
  confidence_is_calibrated();
  without_confidence_depth_counts();
  depth_follows_acceptance_and_cost();
  rows_that_cost_as_much_as_a_forward_are_not_drafted();
  what_does_not_pay_is_left_and_tried_again();
  it_comes_back_when_drafts_turn_good();
}
