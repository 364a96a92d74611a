// The cost of target forwards by their rows.
#include <cmath>

#include "cpp/check.h"
#include "engine/cost.h"

namespace agentkv::testing {
namespace {

bool near(double a, double b, double tolerance) { return std::abs(a - b) <= tolerance; }

const PolicyOptions kOptions;

void more_rows_are_expected_to_cost_more() {
  TargetCost cost(kOptions);
  CHECK(!cost.known());
  CHECK_EQ(cost.seconds(1), 1.0);
  CHECK(cost.seconds(2) > cost.seconds(1));
  cost.learn(40, 5.0);
  CHECK(cost.seconds(1) < 2.5);  // of the guessed shape
  CHECK(cost.seconds(200) > cost.seconds(100));
}

void a_line_is_fitted_from_two_rows_on() {
  TargetCost cost(kOptions);
  for (int i = 0; i < 200; ++i) {
    cost.learn(1, 1.0);
    cost.learn(3, 2.5);
    cost.learn(11, 4.5);
  }
  CHECK(near(cost.seconds(1), 1.0, 1e-3));
  CHECK(near(cost.seconds(7), 3.5, 0.25));
  CHECK(near(cost.seconds(19), 6.5, 1.2));  // held back by the guess
}

void a_tile_more_is_a_step() {
  TargetCost cost(kOptions);
  for (int i = 0; i < 100; ++i) {
    for (const std::size_t rows : {2u, 4u, 6u, 8u, 9u, 12u}) cost.learn(rows, rows <= 8 ? 1.0 : 2.0);
  }
  CHECK(near(cost.seconds(8), 1.0, 0.15));
  CHECK(near(cost.seconds(9), 2.0, 0.15));
}

void cost_follows_but_not_an_interruption() {
  TargetCost cost(kOptions);
  for (int i = 0; i < 80; ++i) cost.learn(4, 1.0);
  cost.learn(4, 1000.0);
  CHECK(cost.seconds(4) < 1.25);
  for (int i = 0; i < 400; ++i) cost.learn(4, 2.0);
  CHECK(near(cost.seconds(4), 2.0, 0.1));
}

void a_row_count_that_seemed_dear_is_forgotten() {
  TargetCost cost(kOptions);
  cost.learn(1, 1.0);
  cost.learn(8, 100.0);
  CHECK(cost.seconds(8) > 10);
  for (int i = 0; i < 400; ++i) cost.learn(1, 1.0);
  CHECK(cost.seconds(8) < 2.0);
}

}  // namespace
}  // namespace agentkv::testing

int main() {
  using namespace agentkv::testing;
  more_rows_are_expected_to_cost_more();
  a_line_is_fitted_from_two_rows_on();
  a_tile_more_is_a_step();
  cost_follows_but_not_an_interruption();
  a_row_count_that_seemed_dear_is_forgotten();
}
