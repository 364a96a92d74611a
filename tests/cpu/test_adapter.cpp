// LoRA adapters beside linear layers, against the arithmetic that kernels/adapter_table.h prescribes, to the bit: for
// any rows beside a row, on every instruction set with FMA, on any number of threads.
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "core/errors.h"
#include "core/isa.h"
#include "cpp/check.h"
#include "cpu/adapter.h"
#include "same_bits.h"
#include "thread_pool.h"

using namespace agentkv;
using namespace agentkv::cpu;
using namespace agentkv::cpu::testing;

namespace {

constexpr int kRows = 23;

std::vector<float> numbers(std::size_t n, unsigned seed) {
  std::vector<float> out(n);
  std::minstd_rand rng(seed);
  std::normal_distribution<float> normal(0, 1);
  for (float& value : out) value = normal(rng);
  return out;
}

std::size_t product(int a, int b) { return static_cast<std::size_t>(a) * static_cast<std::size_t>(b); }

struct Layer {
  int first, outputs, rank;
  std::vector<float> a, b;

  Layer(int first_, int outputs_, int rank_, int inputs, unsigned seed)
      : first(first_),
        outputs(outputs_),
        rank(rank_),
        a(numbers(product(rank_, inputs), seed)),
        b(numbers(product(outputs_, rank_), seed + 1)) {}

  LowRank given() const { return {first, outputs, rank, a, b}; }

  // As the table says, for output o of a row.
  float change(const float* x, int inputs, int o) const {
    float sum = 0;
    for (int k = 0; k < rank; ++k) {
      float lanes[kAdapterLanes] = {};
      for (int i = 0; i < inputs; ++i) {
        float& lane = lanes[i % kAdapterLanes];
        lane = std::fma(x[i], a[product(k, inputs) + static_cast<std::size_t>(i)], lane);
      }
      for (int half = kAdapterLanes / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
      }
      sum = std::fma(lanes[0], b[product(o, rank) + static_cast<std::size_t>(k)], sum);
    }
    return sum;
  }
};

struct Case {
  std::string name;
  int inputs, outputs;  // of the weight
  std::vector<Layer> layers;

  AdapterWeight weight() const {
    std::vector<LowRank> given;
    for (const Layer& layer : layers) given.push_back(layer.given());
    return AdapterWeight(inputs, given);
  }
};

std::vector<Case> cases() {
  return {
      {"one layer", 64, 48, {{0, 48, 8, 64, 1}}},
      {"inputs and outputs that no vector divides", 75, 37, {{0, 37, 3, 75, 2}}},
      {"fewer than a vector", 5, 3, {{0, 3, 1, 5, 3}}},
      {"three layers, one without a change between", 96, 160, {{0, 64, 4, 96, 4}, {96, 33, 7, 96, 5}}},
      {"layers of several ranks", 128, 96, {{0, 32, 16, 128, 6}, {32, 32, 1, 128, 7}, {64, 32, 5, 128, 8}}},
  };
}

struct Rows {
  std::vector<float> x, y;
  std::size_t x_stride, y_stride;

  explicit Rows(const Case& of)
      : x_stride(static_cast<std::size_t>(of.inputs) + 3), y_stride(static_cast<std::size_t>(of.outputs) + 5) {
    x = numbers(kRows * x_stride, 11);
    y = numbers(kRows * y_stride, 12);
  }
};

void run(const AdapterRows& rows, const Case& of, Rows& on, const ParallelFor& parallel_for) {
  add_adapters(rows, "w", {on.x.data(), 1, kRows, of.inputs, 0, static_cast<std::int64_t>(on.x_stride)},
               {on.y.data(), 1, kRows, of.outputs, 0, static_cast<std::int64_t>(on.y_stride)}, parallel_for);
}

std::vector<float> prescribed(const Case& of, const std::vector<bool>& has) {
  Rows on(of);
  for (int r = 0; r < kRows; ++r) {
    if (!has[static_cast<std::size_t>(r)]) continue;
    for (const Layer& layer : of.layers) {
      for (int o = 0; o < layer.outputs; ++o) {
        on.y[static_cast<std::size_t>(r) * on.y_stride + static_cast<std::size_t>(layer.first + o)] +=
            layer.change(on.x.data() + static_cast<std::size_t>(r) * on.x_stride, of.inputs, o);
      }
    }
  }
  return on.y;
}

bool rounds_twice(std::string_view isa) { return isa == "v2"; }

// Whatever other rows there are, and whoever computes them.
void rows_have_the_prescribed_bits() {
  ThreadPool pool(3);
  const ParallelFor threads = [&](std::size_t n, const std::function<void(std::size_t)>& task) { pool.run(n, task); };
  for (const Case& each : cases()) {
    Adapter adapter, other;
    adapter.add("w", each.weight());
    Case changed = each;
    for (Layer& layer : changed.layers) layer.b = numbers(layer.b.size(), 99);
    other.add("w", changed.weight());
    for (const int every : {1, 2, 3, 7}) {
      std::vector<bool> has;
      std::vector<const Adapter*> alone, mixed;
      for (int r = 0; r < kRows; ++r) {
        has.push_back(r % every == 0);
        alone.push_back(has.back() ? &adapter : nullptr);
        mixed.push_back(has.back() ? &adapter : r % 2 == 0 ? &other : nullptr);
      }
      const std::vector<float> want = prescribed(each, has);
      for (const std::string_view isa : available_isas()) {
        if (rounds_twice(isa)) continue;
        set_isa(isa);
        for (const ParallelFor& on : {ParallelFor{}, threads}) {
          AdapterRows rows;
          rows.assign(alone);
          Rows got(each);
          run(rows, each, got, on);
          check_same(got.y, want, each.name + " on " + std::string(isa));
          rows.assign(mixed);
          Rows beside(each);
          run(rows, each, beside, on);
          for (std::size_t r = 0; r < kRows; ++r) {
            if (!has[r]) continue;
            check_same(std::span(beside.y).subspan(r * got.y_stride, got.y_stride),
                       std::span(want).subspan(r * got.y_stride, got.y_stride), each.name + " beside another");
          }
        }
      }
      set_isa(available_isas().front());
    }
  }
}

void what_has_no_adapter_stays() {
  const Case each = cases().front();
  Adapter adapter;
  adapter.add("another weight", each.weight());
  const std::vector<const Adapter*> all(kRows, &adapter);
  AdapterRows rows;
  rows.assign(all);
  Rows got(each);
  const std::vector<float> before = got.y;
  run(rows, each, got, {});
  check_same(got.y, before, "a weight that the adapter has not");
  rows.assign(std::vector<const Adapter*>(kRows, nullptr));
  CHECK(rows.empty());
}

void what_does_not_fit_is_refused() {
  const Layer layer(0, 48, 8, 64, 1);
  const auto made = [](int inputs, std::vector<LowRank> layers) { return AdapterWeight(inputs, layers); };
  CHECK_THROWS(made(64, {}), InvalidTensor, "at least one");
  CHECK_THROWS(made(63, {layer.given()}), InvalidTensor, "for rank 8 between 63 inputs and 48 outputs");
  CHECK_THROWS(made(64, {layer.given(), layer.given()}), InvalidTensor, "behind 48");
  Case each = cases().front();
  Adapter adapter;
  adapter.add("w", each.weight());
  AdapterRows rows;
  rows.assign(std::vector<const Adapter*>(kRows, &adapter));
  Rows on(each);
  each.outputs = 40;
  CHECK_THROWS(run(rows, each, on, {}), InvalidTensor, "to 48 outputs at a layer from 64 to 40");
  each = cases().front();
  rows.assign(std::vector<const Adapter*>(kRows - 1, &adapter));
  CHECK_THROWS(run(rows, each, on, {}), InvalidTensor, "adapters of 22 rows at a layer of 23");
}

}  // namespace

int main() {
  rows_have_the_prescribed_bits();
  what_has_no_adapter_stays();
  what_does_not_fit_is_refused();
}
