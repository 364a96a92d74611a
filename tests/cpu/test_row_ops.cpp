// Norms, ropes, copies, sums and gates against plain double-precision loops, and the same bits from every instruction
// set.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <random>
#include <string_view>
#include <vector>

#include "core/isa.h"
#include "cpp/check.h"
#include "cpu/row_ops.h"
#include "thread_pool.h"

using namespace agentkv;
using namespace agentkv::cpu;
using namespace agentkv::cpu::testing;

namespace {

constexpr std::int32_t kHeads = 3, kTokens = 200;
constexpr float kEps = 1e-5f, kScaling = 1.25f;

// float32 [heads, tokens, dim], stored row by row.
struct Rows {
  std::int32_t heads, dim;
  std::vector<float> data = std::vector<float>(static_cast<std::size_t>(heads * kTokens * dim));

  MutableHeadsView out() { return {data.data(), heads, kTokens, dim, dim, std::int64_t{heads} * dim}; }
  HeadsView in() const { return {data.data(), heads, kTokens, dim, dim, std::int64_t{heads} * dim}; }
  const float* row(int head, int token) const { return data.data() + (token * heads + head) * dim; }
};

Rows random_rows(std::int32_t heads, std::int32_t dim) {
  Rows rows{heads, dim};
  std::mt19937 rng(7);
  std::normal_distribution<float> normal(0, 2);
  for (float& x : rows.data) x = normal(rng);
  return rows;
}

std::vector<std::int64_t> positions() {
  std::vector<std::int64_t> all(kTokens);
  for (std::size_t t = 0; t < all.size(); ++t) all[t] = static_cast<std::int64_t>(t) * 37;
  return all;
}

Rows normed(const Rows& x, const ParallelFor& parallel_for) {
  Rows y{x.heads, x.dim};
  std::vector<float> weight(static_cast<std::size_t>(x.dim));
  for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = 0.5f + 0.01f * static_cast<float>(i);
  rms_norm(x.in(), weight, kEps, y.out(), parallel_for);
  for (int t = 0; t < kTokens; ++t) {
    for (int h = 0; h < x.heads; ++h) {
      double mean = 0;
      for (int i = 0; i < x.dim; ++i) mean += double{x.row(h, t)[i]} * x.row(h, t)[i] / x.dim;
      for (int i = 0; i < x.dim; ++i) {
        const double expected = x.row(h, t)[i] / std::sqrt(mean + kEps) * weight[static_cast<std::size_t>(i)];
        CHECK(std::abs(y.row(h, t)[i] - expected) <= 1e-5 * (1 + std::abs(expected)));
      }
    }
  }
  return y;
}

Rows turned(const Rows& x, int pairs, bool interleaved, const ParallelFor& parallel_for) {
  std::vector<float> inv_freq(static_cast<std::size_t>(pairs));
  for (std::size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] = 1.0f / std::pow(100.0f, static_cast<float>(i) / 8);
  Rows table{1, 2 * pairs}, y = x;
  rope_table(positions(), inv_freq, kScaling, table.out(), parallel_for);
  rope(y.in(), table.in(), interleaved, y.out(), parallel_for);  // in place
  for (int t = 0; t < kTokens; ++t) {
    for (int h = 0; h < x.heads; ++h) {
      const float *from = x.row(h, t), *to = y.row(h, t);
      for (int i = 0; i < pairs; ++i) {
        const int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + pairs;
        const float angle = static_cast<float>(t * 37) * inv_freq[static_cast<std::size_t>(i)];
        const double cos = kScaling * std::cos(double{angle}), sin = kScaling * std::sin(double{angle});
        CHECK(std::abs(to[a] - (from[a] * cos - from[b] * sin)) < 1e-4);
        CHECK(std::abs(to[b] - (from[b] * cos + from[a] * sin)) < 1e-4);
      }
      for (int i = 2 * pairs; i < x.dim; ++i) CHECK_EQ(to[i], from[i]);
    }
  }
  return y;
}

Rows summed(const Rows& a, const Rows& b, const ParallelFor& parallel_for) {
  Rows y = a;
  add_rows(y.in(), b.in(), y.out(), parallel_for);  // in place
  for (std::size_t i = 0; i < y.data.size(); ++i) CHECK_EQ(y.data[i], a.data[i] + b.data[i]);
  return y;
}

double gate_of(Gate gate, double x) {
  if (gate == Gate::Silu) return x / (1 + std::exp(-x));
  if (gate == Gate::Sigmoid) return 1 / (1 + std::exp(-x));
  if (gate == Gate::Softplus) return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
  // (1 + tanh(u)) / 2, where it is next to 0 as well.
  return x / (1 + std::exp(-2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

// With and without a second factor; what is far below and above 0 too.
void gates_are_right(Rows x, const Rows& up, const ParallelFor& parallel_for) {
  const float strange[] = {0.0f, -0.0f, 1e-30f, -20.0f, -88.0f, -200.0f, 200.0f, 1e30f, -1e30f};
  std::copy(std::begin(strange), std::end(strange), x.data.begin() + 3);
  for (const Gate gate : {Gate::Silu, Gate::TanhGelu, Gate::Sigmoid, Gate::Softplus}) {
    Rows alone{x.heads, x.dim}, gated = x;
    gate_rows(gate, x.in(), nullptr, alone.out(), parallel_for);
    const HeadsView factor = up.in();
    gate_rows(gate, gated.in(), &factor, gated.out(), parallel_for);  // in place
    for (std::size_t i = 0; i < x.data.size(); ++i) {
      const double expected = gate_of(gate, x.data[i]);
      // An exponent of up to 126 has so many fewer bits behind its point; so tiny results are less exact.
      const double bound = (std::abs(expected) < 1e-6 ? 2e-5 : 4e-6) * std::abs(expected) + 1e-35;
      CHECK(std::abs(alone.data[i] - expected) <= bound);
      CHECK_EQ(gated.data[i], alone.data[i] * up.data[i]);
    }
  }
  x.data[0] = NAN;
  gate_rows(Gate::Silu, x.in(), nullptr, x.out(), parallel_for);
  CHECK(std::isnan(x.data[0]));
}

// A row's bits do not depend on how many there are, nor on the threads.
void gates_of_rows_alone(const Rows& x, const ParallelFor& parallel_for) {
  Rows all{x.heads, x.dim}, one{x.heads, x.dim};
  gate_rows(Gate::Silu, x.in(), nullptr, all.out(), parallel_for);
  for (std::int32_t t = 0; t < kTokens; ++t) {
    HeadsView src = x.in();
    MutableHeadsView dst = one.out();
    src.data += t * src.token_stride;
    dst.data += t * dst.token_stride;
    src.tokens = dst.tokens = 1;
    gate_rows(Gate::Silu, src, nullptr, dst, nullptr);
  }
  CHECK(one.data == all.data);
}

std::vector<std::vector<float>> everything(const ParallelFor& parallel_for) {
  std::vector<std::vector<float>> made;
  for (const std::int32_t dim : {8, 40, 128}) {
    const Rows x = random_rows(kHeads, dim);
    made.push_back(normed(x, parallel_for).data);
    for (const bool interleaved : {false, true}) made.push_back(turned(x, dim / 4, interleaved, parallel_for).data);
    Rows copy{kHeads, dim};
    copy_rows(x.in(), copy.out(), parallel_for);
    CHECK(copy.data == x.data);
    Rows other = random_rows(kHeads, dim);
    std::reverse(other.data.begin(), other.data.end());
    made.push_back(summed(x, other, parallel_for).data);
  }
  return made;
}

}  // namespace

int main() {
  ThreadPool pool(2);
  const ParallelFor two = [&](std::size_t n, const auto& task) { pool.run(n, task); };
  const auto expected = everything(nullptr);
  for (const std::string_view isa : available_isas()) {
    set_isa(isa);
    CHECK(everything(nullptr) == expected);
    CHECK(everything(two) == expected);
    for (const std::int32_t dim : {8, 40, 129}) {
      gates_are_right(random_rows(kHeads, dim), random_rows(kHeads, dim), two);
      gates_of_rows_alone(random_rows(kHeads, dim), two);
    }
  }
}
