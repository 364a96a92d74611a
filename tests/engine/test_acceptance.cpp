// Expected acceptance: priors, calibration of confidences, levels.
#include <random>

#include "cpp/check.h"
#include "engine/acceptance.h"

namespace agentkv::testing {
namespace {

bool near(double a, double b, double tolerance) { return std::abs(a - b) <= tolerance; }

// A chain of two nodes.
const Draft kChain{.tokens = {1, 2}, .parents = {-1, 0}, .confidence = {0.9f, 0.4f}};

std::vector<float> probabilities(const Acceptance& acceptance, const Draft& draft) {
  std::vector<float> out;
  acceptance.path_probabilities(draft, out);
  return out;
}

void confidence_is_taken_at_its_word_at_first() {
  const PolicyOptions options;
  const auto p = probabilities(Acceptance(options), kChain);
  CHECK(near(static_cast<double>(p[0]), 0.9, 1.0 / 16));
  CHECK(near(static_cast<double>(p[1] / p[0]), 0.4, 1.0 / 16));
}

// Nodes come true with other odds than their drafter says.
void confidence_is_calibrated() {
  const PolicyOptions options;
  std::mt19937 random(1);
  std::bernoulli_distribution first(0.3);
  std::bernoulli_distribution second(0.6);
  Acceptance acceptance(options);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::int32_t> accepted;
    if (first(random)) accepted.push_back(0);
    if (!accepted.empty() && second(random)) accepted.push_back(1);
    acceptance.learn_nodes(kChain, accepted);
  }
  const auto p = probabilities(acceptance, kChain);
  CHECK(near(static_cast<double>(p[0]), 0.3, 0.15));
  CHECK(near(static_cast<double>(p[1] / p[0]), 0.6, 0.2));
}

void without_confidence_depth_counts() {
  const PolicyOptions options;
  Acceptance acceptance(options);
  const Draft draft{.tokens = {1, 2}, .parents = {-1, 0}, .confidence = {}};
  const std::vector<std::int32_t> root{0};
  for (int i = 0; i < 50; ++i) acceptance.learn_nodes(draft, root);
  const auto p = probabilities(acceptance, draft);
  CHECK(p[0] > 0.9f);
  CHECK(p[1] < 0.1f);
}

void a_prior_is_where_rates_start_and_fades() {
  const PolicyOptions options;
  AcceptanceRates prior{.levels = {0.5}, .calibration = std::vector<double>(16, 0.25)};
  Acceptance acceptance(options, prior);
  CHECK(near(acceptance.level(0), 0.5, 1e-9));
  CHECK(near(acceptance.level(1), options.level_acceptance, 1e-9));  // not measured
  CHECK(near(static_cast<double>(probabilities(acceptance, kChain)[1]), 0.25 * 0.25, 1e-6));
  for (int i = 0; i < 1000; ++i) acceptance.learn_levels(1, 1);
  CHECK(acceptance.level(0) > 0.99);
  CHECK(near(acceptance.rates().levels[0], acceptance.level(0), 1e-9));
}

void levels_below_a_failed_one_are_not_counted() {
  const PolicyOptions options;
  Acceptance acceptance(options);
  for (int i = 0; i < 100; ++i) acceptance.learn_levels(3, 1);
  CHECK(acceptance.level(0) > 0.9);
  CHECK(acceptance.level(1) < 0.1);
  CHECK(near(acceptance.level(2), options.level_acceptance, 1e-9));
}

}  // namespace
}  // namespace agentkv::testing

int main() {
  using namespace agentkv::testing;
  confidence_is_taken_at_its_word_at_first();
  confidence_is_calibrated();
  without_confidence_depth_counts();
  a_prior_is_where_rates_start_and_fades();
  levels_below_a_failed_one_are_not_counted();
}
