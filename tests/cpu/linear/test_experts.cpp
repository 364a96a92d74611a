// Linear layers of experts against one linear layer for each row, to the bit: for any number of rows and choices, on
// every instruction set, on any number of threads.
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/errors.h"
#include "core/isa.h"
#include "cpp/check.h"
#include "cpu/linear/experts.h"
#include "cpu/linear/linear.h"
#include "linear/routing.h"
#include "linear/weights.h"
#include "thread_pool.h"

using namespace agentkv;
using namespace agentkv::cpu;
using namespace agentkv::cpu::testing;

namespace {

// Experts of one shape, packed one behind the other as a program has them.
struct Experts {
  LinearShape shape;
  int count;
  std::vector<float> floats;  // [count, outputs, inputs], where the weights are floats
  std::vector<float> bias;    // [count, outputs]
  AlignedBytes bytes;
  std::vector<PackedLinear> packed;

  Experts(const LinearShape& shape, int count)
      : shape(shape),
        count(count),
        bias(random_floats(size(count) * size(shape.outputs), 3)),
        bytes(packed_linear_bytes(shape) * size(count)) {
    const std::size_t each = packed_linear_bytes(shape), n = size(shape.outputs) * size(shape.inputs);
    if (shape.bits == 32) floats = random_floats(n * size(count), 5);
    for (int e = 0; e < count; ++e) {
      const auto out = bytes.span().subspan(size(e) * each, each);
      if (shape.bits == 32) {
        pack_floats(shape, std::span(floats).subspan(size(e) * n, n), out);
      } else {
        const Weights weights(shape, static_cast<unsigned>(20 + e));
        pack_linear(shape, weights.codes, weights.scales, out);
      }
      packed.emplace_back(shape, out);
    }
  }

  static std::size_t size(int n) { return static_cast<std::size_t>(n); }

  std::span<const float> bias_of(int expert) const {
    return std::span(bias).subspan(size(expert) * size(shape.outputs), size(shape.outputs));
  }

  // What one row is for one expert, by itself.
  std::vector<float> alone(int expert, std::span<const float> x) const {
    std::vector<float> y(size(shape.outputs));
    if (shape.bits != 32) {
      QuantizedRows codes;
      codes.assign(x.data(), 1, shape.inputs, x.size(), nullptr);
      linear(codes, packed[size(expert)], bias_of(expert), y.data(), y.size(), nullptr);
      return y;
    }
    const float* w = floats.data() + size(expert) * y.size() * x.size();
    for (std::size_t n = 0; n < y.size(); ++n, w += x.size()) {
      float sum = 0;
      for (std::size_t k = 0; k < x.size(); ++k) {
        sum = isa() == "v2" ? sum + x[k] * w[k] : std::fma(x[k], w[k], sum);
      }
      y[n] = sum + bias_of(expert)[n];
    }
    return y;
  }
};

// y of all slots.
std::vector<float> run(const Experts& experts, const Routing& routing, std::span<const float> x, bool per_slot,
                       const ParallelFor& parallel_for) {
  return run_experts(routing, experts.shape.inputs, experts.shape.outputs, x, per_slot,
                     [&](const HeadsView& from, const MutableHeadsView& to) {
                       expert_linear(from, routing.chosen, experts.packed, experts.bias, to, parallel_for);
                     });
}

void check_shape(const LinearShape& shape, int n_experts, const ParallelFor& two) {
  const Experts experts(shape, n_experts);
  const auto inputs = Experts::size(shape.inputs), outputs = Experts::size(shape.outputs);
  for (const std::string_view isa : available_isas()) {
    set_isa(isa);
    for (const auto& [rows, choices] : {std::pair{1, 1}, {1, 4}, {3, 2}, {17, 1}, {29, 3}, {70, 2}}) {
      for (const bool per_slot : {false, true}) {
        const Routing routing(rows, choices, n_experts, static_cast<unsigned>(rows));
        const std::vector<float> x = random_floats(Experts::size(rows * choices) * inputs, 7);
        const std::vector<float> y = run(experts, routing, x, per_slot, rows % 2 == 0 ? two : nullptr);
        for (std::size_t slot = 0; slot < routing.chosen.size(); ++slot) {
          const std::size_t row = per_slot ? slot : slot / Experts::size(choices);
          const std::vector<float> want =
              experts.alone(static_cast<int>(routing.chosen[slot]), std::span(x).subspan(row * inputs, inputs));
          if (std::memcmp(want.data(), y.data() + slot * outputs, outputs * sizeof(float)) != 0) {
            agentkv::testing::fail(__FILE__, __LINE__,
                                   std::string(isa) + ": slot " + std::to_string(slot) + " of " + std::to_string(rows) +
                                       " x " + std::to_string(choices) + " differs, " + std::to_string(shape.bits) +
                                       " bits, " + std::to_string(shape.inputs) + " -> " +
                                       std::to_string(shape.outputs));
          }
        }
      }
    }
  }
}

void check_refusals() {
  const Experts experts({40, 64, 4, 32}, 3);
  std::vector<float> x(4 * 64), y(4 * 40, -7.0f);
  const HeadsView rows{x.data(), 1, 2, 64, 0, 64};
  const MutableHeadsView out{y.data(), 2, 2, 40, 40, 80};
  const auto call = [&](const HeadsView& in, std::vector<std::int64_t> chosen, const MutableHeadsView& to) {
    expert_linear(in, chosen, experts.packed, {}, to, nullptr);
  };
  CHECK_THROWS(call(rows, {0, 1, 3, 0}, out), InvalidTensor, "expert 3 of 3");
  CHECK_THROWS(call(rows, {0, 1, -1, 0}, out), InvalidTensor, "expert -1");
  CHECK_THROWS(call(rows, {0, 1, 2}, out), InvalidTensor, "3 choices");
  CHECK_THROWS(call({x.data(), 1, 2, 32, 0, 32}, {0, 1, 2, 0}, out), InvalidTensor, "rows of 32");
  CHECK_THROWS(call({x.data(), 3, 2, 64, 64, 192}, {0, 1, 2, 0}, out), InvalidTensor, "2 rows of 2");
  CHECK_THROWS(call(rows, {0, 1, 2, 0}, {y.data(), 2, 2, 40, 30, 60}), InvalidTensor, "overlap");
  CHECK_THROWS(call(rows, {0, 1, 2, 0}, {y.data(), 2, 2, 40, 40, 90}), InvalidTensor, "unequal distances");
  for (const float value : y) CHECK_EQ(value, -7.0f);
  std::vector<float> weights(64);
  CHECK_THROWS(pack_floats({1, 64, 32, 64}, weights, {}), InvalidTensor, "0 bytes");
  CHECK_THROWS(pack_floats({2, 64, 32, 64}, weights, {}), InvalidTensor, "64 floats");
  CHECK_THROWS(check_linear_shape({1, 64, 32, 32}), InvalidTensor, "with 32 bits all 64");
}

}  // namespace

int main() {
  ThreadPool pool(2);
  const ParallelFor two = [&](std::size_t n, const auto& task) { pool.run(n, task); };
  for (const int bits : {4, 8, 32}) {
    const int group = bits == 4 ? 32 : 64;
    check_shape({32, 64, bits, group}, 2, two);
    check_shape({77, 128, bits, bits == 4 ? 64 : 128}, 5, two);
    check_shape({200, 192, bits, bits == 4 ? 32 : 192}, 9, two);
  }
  check_refusals();
}
