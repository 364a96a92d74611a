// The vector passes against plain double-precision loops.
#include <cmath>
#include <limits>
#include <random>
#include <string_view>
#include <vector>

#include "core/isa.h"
#include "cpp/check.h"
#include "engine/softmax.h"

using namespace agentkv;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_row(std::size_t n, float spread, unsigned seed = 1) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> row(n);
  for (float& x : row) x = normal(rng);
  return row;
}

double log_sum_exp(const std::vector<float>& row) {
  double max = -kInfinity, sum = 0;
  for (const float x : row) max = std::max<double>(max, x);
  for (const float x : row) sum += std::exp(x - max);
  return max + std::log(sum);
}

void summary_matches_plain_loops() {
  for (const std::size_t n : {1, 2, 15, 16, 17, 63, 64, 65, 1023, 1024, 1025, 5000, 151936}) {
    for (const float spread : {0.0f, 1.0f, 30.0f}) {
      const auto row = random_row(n, spread, static_cast<unsigned>(n));
      const RowSummary s = summarise(row);
      std::size_t best = 0;
      for (std::size_t i = 1; i < n; ++i) best = row[i] > row[best] ? i : best;
      CHECK_EQ(static_cast<std::size_t>(s.argmax), best);
      CHECK_EQ(s.max, row[best]);
      CHECK(std::abs(s.log_sum_exp - log_sum_exp(row)) < 1e-5);
    }
  }
}

void ties_go_to_the_lowest_index() {
  for (const std::size_t first : {0, 7, 1023, 1024, 2999}) {
    std::vector<float> row(5000, -1.0f);
    for (std::size_t i = first; i < row.size(); i += 500) row[i] = 2.0f;
    CHECK_EQ(static_cast<std::size_t>(summarise(row).argmax), first);
  }
}

void masked_entries_have_no_mass() {
  std::vector<float> row(4096, -kInfinity);
  row[3000] = -2000.0f;  // a whole block of -inf before it
  const RowSummary s = summarise(row);
  CHECK_EQ(s.argmax, 3000);
  CHECK_EQ(s.log_sum_exp, -2000.0);
  std::vector<float> terms(row.size());
  softmax_terms(row, s.max, 1.0f, -kInfinity, terms);
  for (std::size_t i = 0; i < row.size(); ++i) CHECK_EQ(terms[i], i == 3000 ? 1.0f : 0.0f);
}

void what_is_no_distribution_shows() {
  for (const float bad : {kNaN, kInfinity}) {
    for (const std::size_t at : {0, 1500, 4999}) {
      auto row = random_row(5000, 1.0f);
      row[at] = bad;
      CHECK(!std::isfinite(summarise(row).log_sum_exp));
    }
  }
  CHECK(!std::isfinite(summarise(std::vector<float>(100, -kInfinity)).log_sum_exp));
  CHECK(!std::isfinite(summarise(std::vector<float>(100, kNaN)).log_sum_exp));
}

void masses_are_sums_of_terms() {
  for (const std::size_t n : {1, 100, 1024, 3000}) {
    const auto row = random_row(n, 3.0f);
    const float max = summarise(row).max;
    for (const float floor : {-kInfinity, 0.5f}) {
      std::vector<float> terms(n);
      std::vector<double> masses(softmax_blocks(n));
      softmax_terms(row, max, 0.7f, floor, terms);
      block_masses(row, max, 0.7f, floor, masses);
      std::vector<double> sums(masses.size(), 0.0);
      for (std::size_t i = 0; i < n; ++i) {
        const double exact = row[i] < floor ? 0.0 : std::exp((static_cast<double>(row[i]) - max) * 0.7);
        CHECK(std::abs(terms[i] - exact) <= 1e-5 * exact);
        sums[i / kSoftmaxBlock] += terms[i];
      }
      for (std::size_t b = 0; b < sums.size(); ++b) CHECK(std::abs(sums[b] - masses[b]) <= 1e-5 * sums[b]);
    }
  }
}

void maxima_are_those_of_their_groups() {
  const auto row = random_row(1000, 3.0f);
  std::vector<float> maxima(maxima_groups(row.size()));
  CHECK_EQ(maxima.size(), std::size_t{16});
  group_maxima(row, maxima);
  for (std::size_t g = 0; g < maxima.size(); ++g) {
    float best = -kInfinity;
    for (std::size_t i = g * 64; i < std::min(row.size(), (g + 1) * 64); ++i) best = std::max(best, row[i]);
    CHECK_EQ(maxima[g], best);
  }
}

// What this instruction set makes of a row.
std::vector<double> passes(const std::vector<float>& row) {
  const RowSummary s = summarise(row);
  std::vector<double> masses(softmax_blocks(row.size()));
  std::vector<float> terms(row.size()), maxima(maxima_groups(row.size()));
  block_masses(row, s.max, 0.7f, s.max - 5, masses);
  softmax_terms(row, s.max, 0.7f, s.max - 5, terms);
  group_maxima(row, maxima);
  masses.insert(masses.end(), terms.begin(), terms.end());
  masses.insert(masses.end(), maxima.begin(), maxima.end());
  masses.insert(masses.end(), {s.max, static_cast<double>(s.argmax), s.log_sum_exp});
  return masses;
}

void every_instruction_set_gives_the_same_bits() {
  for (const std::size_t n : {1, 17, 1000, 1025, 5003}) {
    const auto row = random_row(n, 3.0f);
    set_isa(available_isas().front());
    const auto best = passes(row);
    for (const std::string_view isa : available_isas()) {
      set_isa(isa);
      CHECK(passes(row) == best);
    }
  }
}

}  // namespace

int main() {
  for (const std::string_view isa : available_isas()) {
    set_isa(isa);
    summary_matches_plain_loops();
    ties_go_to_the_lowest_index();
    masked_entries_have_no_mass();
    what_is_no_distribution_shows();
    masses_are_sums_of_terms();
    maxima_are_those_of_their_groups();
  }
  every_instruction_set_gives_the_same_bits();
}
