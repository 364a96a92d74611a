// Layers of experts over blocks against block_linear of each row and its expert alone, to the bit: for every block
// type, any number of rows and choices, on every instruction set, on any number of threads.
#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "blocks/random_blocks.h"
#include "core/errors.h"
#include "core/isa.h"
#include "cpp/check.h"
#include "cpu/blocks/block_experts.h"
#include "cpu/blocks/block_linear.h"
#include "linear/routing.h"
#include "linear/weights.h"
#include "same_bits.h"
#include "thread_pool.h"

using namespace agentkv;
using namespace agentkv::cpu;
using namespace agentkv::cpu::testing;

namespace {

std::size_t size(int n) { return static_cast<std::size_t>(n); }

// Experts of one shape, packed one behind the other as a program has them.
struct Experts {
  BlockShape shape;
  int count;
  std::vector<float> bias;  // [count, outputs], or empty
  AlignedBytes bytes;
  std::vector<BlockWeight> weights;

  // rows(expert): its blocks as a file has them.
  template <class Rows>
  Experts(const BlockShape& shape, int count, bool with_bias, const Rows& rows)
      : shape(shape), count(count), bytes(block_panel_bytes(shape) * size(count)) {
    if (with_bias) bias = random_floats(size(count) * size(shape.outputs), 3);
    const std::size_t each = block_panel_bytes(shape);
    for (int e = 0; e < count; ++e) {
      const auto out = bytes.span().subspan(size(e) * each, each);
      pack_blocks(shape, rows(e), out);
      weights.emplace_back(shape, out);
    }
  }
  Experts(const BlockShape& shape, int count, bool with_bias)
      : Experts(shape, count, with_bias, [&](int e) { return random_rows(shape, static_cast<unsigned>(20 + e)); }) {}

  std::string name() const {
    return std::string(block_type_info(static_cast<int>(shape.type)).name) + ", " + std::to_string(count) + " of " +
           std::to_string(shape.inputs) + " -> " + std::to_string(shape.outputs);
  }

  std::vector<float> alone(std::int64_t expert, std::span<const float> x) const {
    std::vector<float> y(size(shape.outputs));
    const auto e = static_cast<std::size_t>(expert);
    const auto own = bias.empty() ? std::span<const float>{} : std::span(bias).subspan(e * y.size(), y.size());
    block_linear(x.data(), x.size(), 1, weights[e], own, y.data(), y.size(), nullptr);
    return y;
  }

  std::vector<float> run(const Routing& routing, std::span<const float> x, bool per_slot,
                         const ParallelFor& parallel_for) const {
    return run_experts(routing, shape.inputs, shape.outputs, x, per_slot,
                       [&](const HeadsView& from, const MutableHeadsView& to) {
                         block_expert_linear(from, routing.chosen, weights, bias, to, parallel_for);
                       });
  }
};

// Every slot is what block_linear makes of its row.
void check_call(const Experts& experts, const Routing& routing, bool per_slot, const ParallelFor& parallel_for) {
  const auto inputs = size(experts.shape.inputs), outputs = size(experts.shape.outputs);
  std::vector<float> x = random_floats(routing.chosen.size() * inputs, 7);
  x[x.size() / 2] = std::numeric_limits<float>::infinity();  // of one row, which no other is touched by
  const std::vector<float> y = experts.run(routing, x, per_slot, parallel_for);
  for (std::size_t slot = 0; slot < routing.chosen.size(); ++slot) {
    const std::size_t row = per_slot ? slot : slot / size(routing.choices);
    check_same(std::span(y).subspan(slot * outputs, outputs),
               experts.alone(routing.chosen[slot], std::span(x).subspan(row * inputs, inputs)),
               std::string(isa()) + ", " + experts.name() + ", slot " + std::to_string(slot) + " of " +
                   std::to_string(routing.rows) + " x " + std::to_string(routing.choices));
  }
}

void check_shape(const BlockShape& shape, int n_experts, bool with_bias, const ParallelFor& two) {
  const Experts experts(shape, n_experts, with_bias);
  for (const std::string_view isa : available_isas()) {
    set_isa(isa);
    for (const auto& [rows, choices] : {std::pair{1, 1}, {1, 4}, {3, 2}, {17, 1}, {29, 3}, {70, 2}}) {
      const Routing routing(rows, choices, n_experts, static_cast<unsigned>(rows));
      for (const bool per_slot : {false, true}) check_call(experts, routing, per_slot, rows % 2 == 0 ? two : nullptr);
    }
  }
  set_isa(available_isas().front());
}

// Calls follow one another over weights of other types and sizes in the memory that earlier ones left.
void test_types_in_turn(const ParallelFor& two) {
  const Experts codes({40, 512, BlockType::Q6_K}, 3, true), floats({70, 33, BlockType::F16}, 4, false);
  const Routing many(23, 2, 3, 1), few(2, 3, 4, 2);
  for (int round = 0; round < 2; ++round) {
    check_call(codes, many, true, two);
    check_call(floats, few, false, two);
  }
}

// Bytes of any kind: experts that rows can meet, or a typed error.
void test_random_bytes() {
  std::minstd_rand rng(9);
  int kept = 0, refused = 0;
  for (const BlockTypeInfo& info : block_types()) {
    for (int round = 0; round < 12; ++round) {
      const BlockShape shape{35, 2 * info.inputs, info.type};
      const auto rows = [&](int) {
        std::vector<std::byte> bytes(35 * block_row_bytes(shape));
        for (std::byte& each : bytes) {
          each = static_cast<std::byte>(round % 3 == 0 ? rng() : round % 3 == 1 ? rng() % 2 * 255 : rng() % 50);
        }
        return bytes;
      };
      try {
        const Experts experts(shape, 3, round % 2 == 0, rows);
        check_call(experts, Routing(9, 2, 3, 4), round % 4 < 2, nullptr);
        ++kept;
      } catch (const InvalidTensor&) {
        ++refused;
      }
    }
  }
  CHECK(kept > 0 && refused > 0);
}

void test_refusals() {
  const Experts experts({40, 64, BlockType::Q4_0}, 3, false);
  std::vector<float> x(4 * 64), y(4 * 40, -7.0f);
  const HeadsView rows{x.data(), 1, 2, 64, 0, 64};
  const MutableHeadsView out{y.data(), 2, 2, 40, 40, 80};
  const auto call = [&](const HeadsView& in, std::vector<std::int64_t> chosen, const MutableHeadsView& to,
                        std::span<const float> bias = {}) {
    block_expert_linear(in, chosen, experts.weights, bias, to, nullptr);
  };
  CHECK_THROWS(call(rows, {0, 1, 3, 0}, out), InvalidTensor, "expert 3 of 3");
  CHECK_THROWS(call(rows, {0, 1, -1, 0}, out), InvalidTensor, "expert -1");
  CHECK_THROWS(call(rows, {0, 1, 2}, out), InvalidTensor, "3 choices");
  CHECK_THROWS(call({x.data(), 1, 2, 32, 0, 32}, {0, 1, 2, 0}, out), InvalidTensor, "rows of 32");
  CHECK_THROWS(call(rows, {0, 1, 2, 0}, {y.data(), 2, 2, 40, 30, 60}), InvalidTensor, "overlap");
  CHECK_THROWS(call(rows, {0, 1, 2, 0}, out, std::span(x).first(40)), InvalidTensor, "bias of 40");
  CHECK_THROWS(block_expert_linear(rows, std::vector<std::int64_t>(4), {}, {}, out, nullptr), InvalidTensor,
               "no experts");
  for (const float value : y) CHECK_EQ(value, -7.0f);
}

}  // namespace

int main() {
  ThreadPool pool(2);
  const ParallelFor two = [&](std::size_t n, const auto& task) { pool.run(n, task); };
  for (const BlockTypeInfo& info : block_types()) check_shape({45, 2 * info.inputs, info.type}, 4, true, two);
  for (const BlockType type : {BlockType::MXFP4, BlockType::Q4_K, BlockType::Q6_K, BlockType::F16}) {
    check_shape({32, 256, type}, 2, false, two);
    check_shape({200, 768, type}, 9, true, two);
  }
  test_types_in_turn(two);
  test_random_bytes();
  test_refusals();
}
