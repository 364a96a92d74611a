// How deep the policy drafts by what it has learnt.
#include <random>

#include "cpp/check.h"
#include "engine/draft_policy.h"

namespace agentkv::testing {
namespace {

const PolicyOptions kOptions;

// A target whose forward takes a second plus `row` for each further row.
TargetCost target(double row) {
  TargetCost cost(kOptions);
  for (int i = 0; i < 50; ++i) {
    for (std::size_t rows = 1; rows <= 17; ++rows) cost.learn(rows, 1.0 + row * static_cast<double>(rows - 1));
  }
  return cost;
}

struct Sums {
  int asked = 0;
  int drafted = 0;  // levels
};

// Rounds of a drafter whose levels take `level` seconds; right(round) says whether one comes true.
template <class Right>
Sums play(DraftPolicy& policy, double level, int rounds, Right&& right) {
  Sums sums;
  for (int round = 0; round < rounds; ++round) {
    policy.begin_round(1, 1);
    const DraftPlan plan = policy.plan(12);
    const std::int32_t depth = plan.depth;
    if (depth == 0) continue;
    if (!plan.trial) policy.pays();
    ++sums.asked;
    sums.drafted += depth;
    policy.learn_cost(depth * level, depth, 1);
    std::int32_t accepted = 0;
    while (accepted < depth && right(round)) ++accepted;
    policy.acceptance.learn_levels(depth, accepted);
  }
  return sums;
}

Sums play(double probability, double level, double row, int rounds) {
  std::mt19937 random(1);
  std::bernoulli_distribution right(probability);
  const TargetCost cost = target(row);
  DraftPolicy policy(kOptions, cost, {});
  return play(policy, level, rounds, [&](int) { return right(random); });
}

void depth_follows_acceptance_and_cost() {
  const Sums good = play(0.95, 0.05, 0, 500);
  CHECK_EQ(good.asked, 500);
  CHECK(good.drafted > 7 * 500);
  const Sums fair = play(0.6, 0.2, 0, 500);
  CHECK(fair.asked > 400);
  CHECK(fair.drafted < 4 * 500);
}

void rows_that_cost_as_much_as_a_forward_are_not_drafted() { CHECK(play(0.8, 0.05, 1, 1000).asked < 30); }

void what_does_not_pay_is_left_and_tried_again() {
  const Sums useless = play(0.0, 0.2, 0, 2000);
  CHECK(useless.asked < 40);
  CHECK(useless.asked >= 6);
  CHECK(useless.drafted * 0.2 < 0.03 * 2000);
}

void it_comes_back_when_drafts_turn_good() {
  const TargetCost cost = target(0);
  DraftPolicy policy(kOptions, cost, {});
  play(policy, 0.1, 1000, [](int) { return false; });
  play(policy, 0.1, 1000, [](int) { return true; });
  CHECK(play(policy, 0.1, 1000, [](int) { return true; }).asked > 950);
}

void a_prior_decides_the_first_round() {
  const TargetCost cost = target(0.02);
  const auto first_depth = [&](double rate) {
    DraftPolicy policy(kOptions, cost, {.levels = std::vector<double>(16, rate)});
    policy.begin_round(1, 1);
    return policy.plan(12).depth;
  };
  CHECK(first_depth(0.99) >= 8);
  CHECK(first_depth(0.3) <= 1);
}

void a_drafter_is_not_asked_for_what_others_know() {
  const TargetCost cost = target(0.05);
  DraftPolicy policy(kOptions, cost, {.levels = std::vector<double>(16, 0.8)});
  policy.begin_round(1, 1);
  Draft sure;
  for (int node = 0; node < 8; ++node) {
    sure.tokens.push_back(node);
    sure.parents.push_back(node - 1);
    sure.confidence.push_back(0.99f);
  }
  const std::int32_t alone = policy.plan(12).depth;
  CHECK(alone >= 2);
  CHECK_EQ(policy.plan(12, sure).depth, 1);  // a trial
  CHECK(policy.plan(12, {.tokens = {1}, .parents = {-1}, .confidence = {0.1f}}).depth >= 2);
}

void one_branch_tries_for_all() {
  const TargetCost cost = target(0.02);
  DraftPolicy policy(kOptions, cost, {.levels = std::vector<double>(16, 0.0)});
  policy.begin_round(8, 8);
  CHECK(policy.plan(12).trial);
  for (int other = 1; other < 8; ++other) CHECK_EQ(policy.plan(12).depth, 0);
}

}  // namespace
}  // namespace agentkv::testing

int main() {
  using namespace agentkv::testing;
  depth_follows_acceptance_and_cost();
  rows_that_cost_as_much_as_a_forward_are_not_drafted();
  what_does_not_pay_is_left_and_tried_again();
  it_comes_back_when_drafts_turn_good();
  a_prior_decides_the_first_round();
  a_drafter_is_not_asked_for_what_others_know();
  one_branch_tries_for_all();
}
