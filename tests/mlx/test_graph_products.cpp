// Embeddings, packed weights and experts.
#include <cstdint>
#include <vector>

#include "core/errors.h"
#include "mlx/graph_rig.h"

namespace {

using agentkv::InvalidTensor;
using namespace agentkv::testing;

GraphWriter lookup(std::uint32_t index_dtype = kI64) {
  GraphWriter graph;
  const auto indices = graph.input(index_dtype, {-1});
  const auto table = graph.constant("table", kF32, {3, 2});
  return graph.output(graph.op(3, {table, indices}), kF32, {-1, 2});
}

Rig::Constants small_table() { return {{"table", mx::array({0, 1, 2, 3, 4, 5}, {3, 2}, mx::float32)}}; }

void embeddings_read_inside_their_table() {
  Rig rig(lookup(), small_table);
  check_near(rig.run({rows(Ints{2, 0, 2})}), {4, 5, 0, 1, 4, 5});
  CHECK_THROWS(rig.run({rows(Ints{0, 3})}), InvalidTensor, "(EMBEDDING", "index 3 is outside the 3 rows");
  CHECK_THROWS(rig.run({rows(Ints{-1})}), InvalidTensor, "index -1 is outside the 3 rows");
  Rig by_floats(lookup(kF32), small_table);
  CHECK_THROWS(by_floats.run({rows(Floats{0}, {1})}), InvalidTensor, "indices that are no integers");
}

void computed_indices_are_checked_too() {
  GraphWriter graph;
  const auto indices = graph.input(kI64, {-1});
  const auto table = graph.constant("table", kF32, {3, 2});
  const auto doubled = graph.op(40, {indices, indices});
  graph.output(graph.op(18, {table, doubled}, {0}), kF32, {-1, 2});
  Rig rig(graph, small_table);
  check_near(rig.run({rows(Ints{1, 0})}), {4, 5, 0, 1});
  check_near(rig.run({rows(Ints{-1, 0})}), {2, 3, 0, 1});  // from the end
  CHECK_THROWS(rig.run({rows(Ints{-2})}), InvalidTensor, "(TAKE", "index -4 is outside the 3 rows");
  CHECK_THROWS(rig.run({rows(Ints{1, 2})}), InvalidTensor, "(TAKE", "index 4 is outside the 3 rows");
}

// A matrix of 5 x 64 in groups of 32: packed by MLX, multiplied out by MLX, used by the graph.
void packed_weights_stand_for_what_they_unpack_to() {
  for (const int bits : {4, 5, 8}) {
    const int columns = 64 * bits / 32;
    GraphWriter graph;
    const auto x = graph.input(kF32, {-1, 64}), indices = graph.input(kI64, {-1});
    const auto packed = graph.constant("q", kU32, {5, columns});
    const auto scales = graph.constant("s", kF32, {5, 2}), biases = graph.constant("z", kF32, {5, 2});
    const auto bias = graph.constant("b", kF32, {5}), dense = graph.constant("w", kF32, {5, 64});
    const auto got = graph.op(2, {x, packed, scales, biases, bias}, {32, bits});
    const auto want = graph.op(1, {x, dense, bias});
    const auto rows_got = graph.op(4, {packed, scales, biases, indices}, {32, bits});
    const auto rows_want = graph.op(3, {dense, indices});
    const auto worst = graph.op(72, {graph.op(21, {graph.op(41, {got, want})})}, {0, 0, 1});
    const auto worst_row = graph.op(72, {graph.op(21, {graph.op(41, {rows_got, rows_want})})}, {0, 0, 1});
    graph.output(graph.op(45, {worst, worst_row}), kF32, {});
    Rig rig(graph, [&] {
      const Floats values = noise(5 * 64, 3);
      const auto parts = mx::quantize(mx::array(values.data(), {5, 64}, mx::float32), 32, bits);
      return Rig::Constants{{"q", parts[0]},
                            {"s", parts[1]},
                            {"z", parts[2]},
                            {"b", mx::full({5}, 0.5f)},
                            {"w", mx::dequantize(parts[0], parts[1], parts[2], 32, bits)}};
    });
    check_near(rig.run({rows(noise(128), {2, 64}), rows(Ints{4, 0, 1})}), {0}, 1e-4);
  }
}

void packed_weights_that_do_not_fit_are_refused() {
  const auto run = [](int columns, int groups, int width, int bias) {
    GraphWriter graph;
    const auto x = graph.input(kF32, {-1, -1});
    const auto packed = graph.constant("q", kU32, {5, columns});
    const auto scales = graph.constant("s", kF32, {5, groups}), biases = graph.constant("z", kF32, {5, groups});
    const auto shift = graph.constant("b", kF32, {bias});
    graph.output(graph.op(2, {x, packed, scales, biases, shift}, {32, 8}), kF32, {-1, -1});
    return Rig(graph,
               [&] {
                 return Rig::Constants{{"q", mx::zeros({5, columns}, mx::uint32)},
                                       {"s", mx::zeros({5, groups})},
                                       {"z", mx::zeros({5, groups})},
                                       {"b", mx::zeros({bias})}};
               })
        .run({rows(Floats(static_cast<std::size_t>(width)), {1, width})});
  };
  CHECK_EQ(run(16, 2, 64, 5).size(), 5u);
  CHECK_THROWS(run(16, 3, 64, 5), InvalidTensor, "AFFINE_LINEAR", "16 words of 8-bit codes for 3 groups of 32");
  CHECK_THROWS(run(16, 2, 32, 5), InvalidTensor, "does not fit its rows");
  CHECK_THROWS(run(16, 2, 64, 1), InvalidTensor, "its bias does not have 5 elements");
}

// Layers of 4 experts, [6, 32] each, over 5 rows of 3 choices.
constexpr int kRows = 5, kChoices = 3, kExperts = 4, kOut = 6, kIn = 32;
const Ints kChosen = {0, 3, 1, 2, 2, 0, 3, 1, 0, 1, 1, 1, 0, 2, 3};

// What the layer should give, in doubles; x has one row for all choices of a token, or one for each.
std::vector<double> by_hand(const Floats& x, const Floats& weight, const Floats& bias, bool per_choice) {
  std::vector<double> out;
  for (int slot = 0; slot < kRows * kChoices; ++slot) {
    const auto expert = static_cast<int>(kChosen[static_cast<std::size_t>(slot)]);
    const float* row = x.data() + (per_choice ? slot : slot / kChoices) * kIn;
    for (int o = 0; o < kOut; ++o) {
      double sum = bias[static_cast<std::size_t>(expert * kOut + o)];
      for (int i = 0; i < kIn; ++i) sum += double{row[i]} * weight[(expert * kOut + o) * kIn + i];
      out.push_back(sum);
    }
  }
  return out;
}

mx::Shape shape_of_rows(bool per_choice) {
  return per_choice ? mx::Shape{kRows, kChoices, kIn} : mx::Shape{kRows, kIn};
}

Floats noise_of_rows(bool per_choice) {
  return noise(static_cast<std::size_t>(kRows * (per_choice ? kChoices : 1) * kIn));
}

Rig::Constants experts(const Floats& weight, const Floats& bias, mx::Dtype dtype = mx::float32) {
  return {{"w", mx::astype(mx::array(weight.data(), {kExperts, kOut, kIn}, mx::float32), dtype)},
          {"b", mx::astype(mx::array(bias.data(), {kExperts, kOut}, mx::float32), dtype)}};
}

void rows_meet_the_experts_that_they_chose() {
  const Floats weight = noise(kExperts * kOut * kIn, 2), bias = noise(kExperts * kOut, 3);
  for (const bool per_choice : {false, true}) {
    for (const auto& [dtype, code, tolerance] :
         {std::tuple{mx::float32, kF32, 1e-5}, {mx::float16, kF16, 2e-2}, {mx::bfloat16, kBF16, 1e-1}}) {
      GraphWriter graph;
      const auto x = graph.input(kF32, Sizes(per_choice ? 3 : 2, -1)), chosen = graph.input(kI64, {-1});
      const auto w = graph.constant("w", code, {kExperts, kOut, kIn}), b = graph.constant("b", code, {kExperts, kOut});
      const auto choice = graph.op(13, {chosen}, {-1, kChoices});
      const auto out = graph.op(80, {graph.op(11, {x}, {code}), choice, w, b});
      Rig rig(graph.output(out, code, {-1, kChoices, kOut}), [&] { return experts(weight, bias, dtype); });
      const Floats in = noise_of_rows(per_choice);
      check_near(rig.run({rows(in, shape_of_rows(per_choice)), rows(kChosen)}), by_hand(in, weight, bias, per_choice),
                 tolerance);
    }
  }
}

void packed_experts_stand_for_what_they_unpack_to() {
  const Floats weight = noise(kExperts * kOut * kIn, 2), bias = noise(kExperts * kOut, 3);
  for (const bool per_choice : {false, true}) {
    for (const int bits : {4, 5, 8}) {
      GraphWriter graph;
      const auto x = graph.input(kF32, Sizes(per_choice ? 3 : 2, -1)), chosen = graph.input(kI64, {-1});
      const auto packed = graph.constant("q", kU32, {kExperts, kOut, kIn * bits / 32});
      const auto scales = graph.constant("s", kF32, {kExperts, kOut, 1});
      const auto biases = graph.constant("z", kF32, {kExperts, kOut, 1});
      const auto b = graph.constant("b", kF32, {kExperts, kOut});
      const auto choice = graph.op(13, {chosen}, {-1, kChoices});
      const auto out = graph.op(81, {x, choice, packed, scales, biases, b}, {32, bits});
      Floats unpacked;
      Rig rig(graph.output(out, kF32, {-1, kChoices, kOut}), [&] {
        auto constants = experts(weight, bias);
        const auto parts = mx::quantize(constants.at("w"), 32, bits);
        mx::array dense = mx::contiguous(mx::dequantize(parts[0], parts[1], parts[2], 32, bits));
        dense.eval();
        unpacked.assign(dense.data<float>(), dense.data<float>() + dense.size());
        return Rig::Constants{{"q", parts[0]}, {"s", parts[1]}, {"z", parts[2]}, {"b", constants.at("b")}};
      });
      const Floats in = noise_of_rows(per_choice);
      check_near(rig.run({rows(in, shape_of_rows(per_choice)), rows(kChosen)}),
                 by_hand(in, unpacked, bias, per_choice));
    }
  }
}

void experts_that_do_not_fit_are_refused() {
  const auto run = [](int outputs, int inputs, mx::Shape shape, const Ints& choice, std::int64_t choices) {
    std::size_t size = 1;
    for (const int n : shape) size *= static_cast<std::size_t>(n);
    GraphWriter graph;
    const auto x = graph.input(kF32, Sizes(shape.size(), -1)), chosen = graph.input(kI64, {-1});
    const auto w = graph.constant("w", kF32, {kExperts, kOut, inputs});
    const auto b = graph.constant("b", kF32, {kExperts, outputs});
    graph.output(graph.op(80, {x, graph.op(13, {chosen}, {-1, choices}), w, b}), kF32, {-1, -1, -1});
    return Rig(graph,
               [&] {
                 return Rig::Constants{{"w", mx::zeros({kExperts, kOut, inputs})},
                                       {"b", mx::zeros({kExperts, outputs})}};
               })
        .run({rows(Floats(size), shape), rows(choice)});
  };
  CHECK_EQ(run(kOut, kIn, {2, kIn}, {0, 1, 2, 3}, 2).size(), 4u * kOut);
  CHECK_EQ(run(kOut, kIn, {2, kIn}, {0, -7, 2, 99}, 2).size(), 4u * kOut);  // no foreign memory is read
  CHECK_THROWS(run(kOut - 1, kIn, {2, kIn}, {0, 1}, 1), InvalidTensor, "EXPERT_LINEAR", "biases that do not fit");
  CHECK_THROWS(run(kOut, 16, {2, kIn}, {0, 1}, 1), InvalidTensor, "experts that do not fit their rows");
  CHECK_THROWS(run(kOut, kIn, {3, kIn}, {0, 1}, 1), InvalidTensor, "experts that do not fit their rows");
  CHECK_THROWS(run(kOut, kIn, {2, 3, kIn}, {0, 1, 2, 3}, 2), InvalidTensor, "experts that do not fit their rows");
}

}  // namespace

int main() {
  embeddings_read_inside_their_table();
  computed_indices_are_checked_too();
  packed_weights_stand_for_what_they_unpack_to();
  packed_weights_that_do_not_fit_are_refused();
  rows_meet_the_experts_that_they_chose();
  packed_experts_stand_for_what_they_unpack_to();
  experts_that_do_not_fit_are_refused();
  return 0;
}
