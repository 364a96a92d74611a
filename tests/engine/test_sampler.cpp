// Random numbers, and every filter against a plain sort of the whole vocabulary.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "core/errors.h"
#include "cpp/check.h"
#include "engine/philox.h"
#include "engine/sampler.h"

using namespace agentkv;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_row(std::size_t n, float spread, unsigned seed = 3) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> row(n);
  for (float& x : row) x = normal(rng);
  return row;
}

void philox_gives_the_published_numbers() {
  CHECK((philox({0, 0, 0, 0}, {0, 0}) == PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  CHECK((philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) == PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  CHECK((philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
         PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

void uniform_numbers_are_uniform_and_keyed() {
  std::set<double> seen;
  double sum = 0;
  for (std::uint32_t i = 0; i < 30000; ++i) {
    const double u = uniform({i % 3, i % 100, i / 100});
    CHECK(u >= 0 && u < 1);
    CHECK_EQ(u, uniform({i % 3, i % 100, i / 100}));
    seen.insert(u);
    sum += u;
  }
  CHECK_EQ(seen.size(), std::size_t{30000});
  CHECK(std::abs(sum / 30000 - 0.5) < 0.01);
  std::set<std::uint64_t> streams;
  for (std::uint64_t parent = 0; parent < 100; ++parent) {
    for (std::uint32_t n = 0; n < 100; ++n) streams.insert(child_stream(parent, n));
  }
  CHECK_EQ(streams.size(), std::size_t{10000});
}

// The probability of each token by definition, in double precision.
std::vector<double> distribution(const std::vector<float>& row, const Sampling& s) {
  std::vector<std::size_t> order(row.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return row[a] > row[b]; });
  std::vector<double> p(row.size());
  for (std::size_t i = 0; i < row.size(); ++i) {
    p[i] = std::exp((static_cast<double>(row[i]) - row[order[0]]) / s.temperature);
  }
  std::size_t kept = row.size();
  if (s.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(s.top_k));
  const auto mass = [&](std::size_t n) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += p[order[i]];
    return sum;
  };
  if (s.top_p < 1) {
    const double target = s.top_p * mass(kept);
    double sum = 0;
    for (std::size_t i = 0; i < kept; ++i) {
      sum += p[order[i]];
      if (sum >= target) kept = i + 1;
    }
  }
  while (kept > 1 && p[order[kept - 1]] < s.min_p) --kept;
  const double total = mass(kept);
  for (std::size_t i = 0; i < order.size(); ++i) p[order[i]] = i < kept ? p[order[i]] / total : 0.0;
  return p;
}

std::map<Token, int> drawn(const std::vector<float>& row, const Sampling& s, int n) {
  Sampler sampler;
  std::map<Token, int> counts;
  for (int i = 0; i < n; ++i) ++counts[sampler.sample(row, s, {}, {11, 5, static_cast<std::uint32_t>(i)}).token];
  return counts;
}

// Chi-square over the tokens with an expected count of 8 or more, the rest in one class. The bound is the mean plus
// five standard deviations; the draws are fixed by their keys, so the outcome is too.
void check_distribution(const std::vector<float>& row, const Sampling& s, int n) {
  const auto expected = distribution(row, s);
  const auto counts = drawn(row, s, n);
  double chi = 0, rest_expected = 0, rest = 0, classes = 0;
  for (std::size_t t = 0; t < row.size(); ++t) {
    const auto found = counts.find(static_cast<Token>(t));
    const double count = found == counts.end() ? 0 : found->second;
    if (expected[t] == 0) CHECK_EQ(count, 0.0);
    if (expected[t] * n < 8) {
      rest_expected += expected[t] * n;
      rest += count;
    } else {
      chi += (count - expected[t] * n) * (count - expected[t] * n) / (expected[t] * n);
      ++classes;
    }
  }
  if (rest_expected > 0.5) {
    chi += (rest - rest_expected) * (rest - rest_expected) / rest_expected;
    ++classes;
  }
  CHECK(chi <= classes - 1 + 5 * std::sqrt(2 * std::max(1.0, classes - 1)));
}

void draws_follow_the_distribution() {
  const auto row = random_row(40, 2.0f);
  check_distribution(row, {.temperature = 1}, 20000);
  check_distribution(row, {.temperature = 0.5f}, 20000);
  check_distribution(row, {.temperature = 1.7f, .top_k = 7}, 20000);
  check_distribution(row, {.temperature = 1, .top_p = 0.8f}, 20000);
  check_distribution(row, {.temperature = 1, .min_p = 0.1f}, 20000);
  check_distribution(row, {.temperature = 1.3f, .top_k = 20, .top_p = 0.9f, .min_p = 0.05f}, 20000);
}

// Large vocabularies take other paths: block masses, group maxima, the histogram of a flat distribution.
void draws_follow_the_distribution_over_large_vocabularies() {
  const auto peaked = random_row(20000, 4.0f);
  const auto flat = random_row(20000, 0.3f);
  for (const auto* row : {&peaked, &flat}) {
    check_distribution(*row, {.temperature = 1}, 3000);
    check_distribution(*row, {.temperature = 1, .top_k = 50}, 3000);
    check_distribution(*row, {.temperature = 1, .top_k = 5000}, 3000);
    check_distribution(*row, {.temperature = 1, .top_p = 0.5f}, 3000);
    check_distribution(*row, {.temperature = 1, .min_p = 0.3f}, 3000);
    check_distribution(*row, {.temperature = 0.8f, .top_p = 0.95f, .min_p = 0.02f}, 3000);
  }
}

void greedy_is_the_highest_with_ties_to_the_lowest() {
  Sampler sampler;
  CHECK_EQ(sampler.sample(std::vector<float>{1, 3, 2, 3}, {}, {}, {}).token, 1);
  const auto row = random_row(5000, 3.0f);
  const auto best = static_cast<Token>(std::max_element(row.begin(), row.end()) - row.begin());
  CHECK_EQ(sampler.sample(row, {}, {}, {}).token, best);
  for (const Sampling& s : {Sampling{.temperature = 5, .top_k = 1}, Sampling{.temperature = 5, .top_p = 1e-6f},
                            Sampling{.temperature = 5, .min_p = 1}, Sampling{.temperature = 1e-30f}}) {
    CHECK((drawn(row, s, 50) == std::map<Token, int>{{best, 50}}));
  }
}

void the_penalty_is_that_of_transformers() {
  Sampler sampler;
  const std::vector<float> row{2.0f, 1.5f, -1.0f, -1.1f};
  const std::vector<Token> history{0, 0, 2, 0};  // 2.0 / 1.5 = 1.33: below 1.5, and penalised once only
  CHECK_EQ(sampler.sample(row, {.repetition_penalty = 1.5f}, {history}, {}).token, 1);
  CHECK_EQ(sampler.sample(row, {.repetition_penalty = 1.2f}, {history}, {}).token, 0);
  const std::vector<float> negative{-1.0f, -1.1f};
  CHECK_EQ(sampler.sample(negative, {.repetition_penalty = 1.2f}, {std::vector<Token>{0}}, {}).token, 1);
}

// The scores by definition: what a seeded draw over them gives is what the sampler must give over the row.
std::vector<float> adjusted(const std::vector<float>& row, const Sampling& s, const Sampler::Past& past) {
  std::vector<float> scores = row;
  for (std::size_t t = 0; t < row.size(); ++t) {
    const auto token = static_cast<Token>(t);
    const bool held = std::count(past.log.begin(), past.log.end(), token) > 0;
    if (held) scores[t] = row[t] < 0 ? row[t] * s.repetition_penalty : row[t] / s.repetition_penalty;
    const auto made = std::count(past.made.begin(), past.made.end(), token);
    if (made > 0) scores[t] -= s.presence_penalty + s.frequency_penalty * static_cast<float>(made);
    if (s.logit_bias.contains(token)) scores[t] += s.logit_bias.at(token);
  }
  return scores;
}

void penalties_and_biases_are_applied_by_definition_and_in_order() {
  Sampler sampler;  // one for all: what it keeps between rows must not show
  std::mt19937 rng(5);
  const auto pick = [&](float low, float high) { return std::uniform_real_distribution<float>(low, high)(rng); };
  int moved = 0;
  for (std::uint32_t round = 0; round < 400; ++round) {
    const std::size_t vocab = round % 2 ? 40 : 1500;
    const auto row = random_row(vocab, 2.0f, round);
    std::vector<Token> log(rng() % 200);
    for (Token& token : log) token = static_cast<Token>(rng() % std::min<std::size_t>(vocab, 60));
    const Sampler::Past past{log, std::span(log).last(log.size() / 2)};
    Sampling s{.temperature = round % 3 ? 1.1f : 0.0f, .top_k = round % 5 ? 0 : 20, .top_p = round % 7 ? 1.0f : 0.9f};
    Sampling adjusting = s;
    if (round % 2) adjusting.repetition_penalty = pick(0.5f, 2);
    if (round % 3) adjusting.presence_penalty = pick(-2, 2);
    if (round % 4) adjusting.frequency_penalty = pick(-2, 2);
    for (unsigned i = rng() % 4; i > 0; --i) {
      adjusting.logit_bias[static_cast<Token>(rng() % vocab)] = pick(-100, 100);
    }
    adjusting.validate(static_cast<Token>(vocab));
    const RandomKey key{7, 3, round};
    const auto [token, logprob] = sampler.sample(row, adjusting, past, key);
    CHECK_EQ(token, sampler.sample(adjusted(row, adjusting, past), s, {}, key).token);
    CHECK(std::abs(logprob - log_probability(row, token)) < 1e-5);
    moved += token != sampler.sample(row, s, past, key).token;
  }
  CHECK(moved > 100);
}

void what_the_prompt_held_is_not_counted() {
  Sampler sampler;
  const std::vector<float> row{3.0f, 2.5f, 2.0f};
  const std::vector<Token> log{0, 0, 0, 1};
  CHECK_EQ(sampler.sample(row, {.presence_penalty = 2}, {log, {}}, {}).token, 0);
  CHECK_EQ(sampler.sample(row, {.presence_penalty = 2}, {log, std::span(log).last(2)}, {}).token, 2);
  CHECK_EQ(sampler.sample(row, {.presence_penalty = 0.6f}, {log, log}, {}).token, 0);  // once, however often it came
  CHECK_EQ(sampler.sample(row, {.frequency_penalty = 0.6f}, {log, log}, {}).token, 2);
}

void a_bias_rules_out_and_rules() {
  Sampler sampler;
  const auto row = random_row(500, 3.0f);
  const auto best = static_cast<Token>(std::max_element(row.begin(), row.end()) - row.begin());
  CHECK(sampler.sample(row, {.logit_bias = {{best, -100}}}, {}, {}).token != best);
  CHECK((drawn(row, {.temperature = 1, .logit_bias = {{7, 100}}}, 50) == std::map<Token, int>{{7, 50}}));
  CHECK((drawn(row, {.temperature = 1, .top_k = 1, .logit_bias = {{7, 100}}}, 50) == std::map<Token, int>{{7, 50}}));
}

void log_probabilities_are_the_models() {
  Sampler sampler;
  const auto row = random_row(300, 2.0f);
  double total = 0;
  for (const float x : row) total += std::exp(static_cast<double>(x));
  for (std::uint32_t i = 0; i < 50; ++i) {
    const std::vector<Token> history{static_cast<Token>(i)};
    const auto [token, logprob] =
        sampler.sample(row, {.temperature = 2, .top_k = 40, .repetition_penalty = 1.4f}, {history}, {1, 2, i});
    const double exact = row[static_cast<std::size_t>(token)] - std::log(total);
    CHECK(std::abs(logprob - exact) < 1e-5);
    CHECK(std::abs(log_probability(row, token) - exact) < 1e-6);
  }
}

void rows_that_are_no_distribution_are_refused() {
  Sampler sampler;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS(sampler.sample(std::vector<float>{0, nan, 1}, {}, {}, {}), ForwardFailed, "NaN");
  CHECK_THROWS(sampler.sample(std::vector<float>{0, kInfinity}, {.temperature = 1}, {}, {}), ForwardFailed, "+inf");
  const std::vector<float> masked{-kInfinity, 0, -kInfinity};
  CHECK((drawn(masked, {.temperature = 9}, 100) == std::map<Token, int>{{1, 100}}));
}

// Whether a mask allows few tokens or most, it is as if the others were never there.
void a_mask_leaves_what_it_allows_alone() {
  for (const std::size_t vocab : {40u, 3000u}) {
    for (const std::size_t every : {1u, 2u, 3u, 13u}) {
      const auto row = random_row(vocab, 2, static_cast<unsigned>(every));
      std::vector<std::uint32_t> mask(mask_words(static_cast<std::int32_t>(vocab)));
      std::vector<float> rest(vocab, -kInfinity);
      for (std::size_t i = 1; i < vocab; i += every) {
        mask[i / 32] |= 1u << i % 32;
        rest[i] = row[i];
      }
      const std::vector<Token> history{1, 1, 4};
      Sampler sampler;
      for (const Sampling& s : {Sampling{}, Sampling{.repetition_penalty = 3}, Sampling{.temperature = 1},
                                Sampling{.temperature = 0.8f, .top_k = 5}, Sampling{.temperature = 1, .top_p = 0.7f},
                                Sampling{.temperature = 1.5f, .min_p = 0.1f}}) {
        for (std::uint32_t position = 0; position < 20; ++position) {
          const auto got = sampler.sample(row, s, {history, {}}, {1, 2, position}, mask);
          CHECK_EQ(got.token, sampler.sample(rest, s, {history, {}}, {1, 2, position}).token);
          CHECK(allows(mask, got.token));
          CHECK_EQ(got.logprob, static_cast<float>(log_probability(row, got.token)));
        }
      }
    }
  }
  const std::vector<std::uint32_t> nothing(mask_words(40));
  CHECK_THROWS(Sampler().sample(random_row(40, 1), {}, {}, {}, nothing), ForwardFailed, "allows no token");
}

void parameters_out_of_range_are_refused() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS(Sampling{.temperature = -0.5f}.validate(8), InvalidSampling, "temperature", "-0.5", ">= 0");
  CHECK_THROWS(Sampling{.temperature = nan}.validate(8), InvalidSampling, "temperature");
  CHECK_THROWS(Sampling{.temperature = kInfinity}.validate(8), InvalidSampling, "temperature", "finite");
  CHECK_THROWS(Sampling{.top_k = -1}.validate(8), InvalidSampling, "top_k", "-1");
  CHECK_THROWS(Sampling{.top_p = 0}.validate(8), InvalidSampling, "top_p", "(0, 1]");
  CHECK_THROWS(Sampling{.top_p = 1.5f}.validate(8), InvalidSampling, "top_p", "1.5");
  CHECK_THROWS(Sampling{.min_p = 2}.validate(8), InvalidSampling, "min_p", "[0, 1]");
  CHECK_THROWS(Sampling{.repetition_penalty = 0}.validate(8), InvalidSampling, "repetition_penalty", "> 0");
  CHECK_THROWS(Sampling{.presence_penalty = 2.5f}.validate(8), InvalidSampling, "presence_penalty", "2.5", "[-2, 2]");
  CHECK_THROWS(Sampling{.frequency_penalty = nan}.validate(8), InvalidSampling, "frequency_penalty", "[-2, 2]");
  CHECK_THROWS((Sampling{.logit_bias = {{3, -101}}}.validate(8)), InvalidSampling, "logit_bias", "-101", "[-100, 100]");
  CHECK_THROWS((Sampling{.logit_bias = {{8, 1}}}.validate(8)), InvalidSampling, "logit_bias", "token id 8", "0 to 7");
}

}  // namespace

int main() {
  philox_gives_the_published_numbers();
  uniform_numbers_are_uniform_and_keyed();
  draws_follow_the_distribution();
  draws_follow_the_distribution_over_large_vocabularies();
  greedy_is_the_highest_with_ties_to_the_lowest();
  the_penalty_is_that_of_transformers();
  penalties_and_biases_are_applied_by_definition_and_in_order();
  what_the_prompt_held_is_not_counted();
  a_bias_rules_out_and_rules();
  log_probabilities_are_the_models();
  rows_that_are_no_distribution_are_refused();
  a_mask_leaves_what_it_allows_alone();
  parameters_out_of_range_are_refused();
}
