// Every operation against numbers worked out here, and what each refuses.
#include <mlx/memory.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "core/errors.h"
#include "mlx/graph_rig.h"

namespace {

using agentkv::InvalidTensor;
using agentkv::mlx::Input;
using namespace agentkv::testing;
using Doubles = std::vector<double>;

// y = op(x...) over float32 inputs of equal shapes.
Floats apply(std::uint32_t opcode, const std::vector<Floats>& inputs, mx::Shape shape, const Sizes& ints = {},
             const Doubles& floats = {}, std::uint32_t out = kF32, const Sizes& out_sizes = {-1, -1}) {
  GraphWriter graph;
  std::vector<std::int32_t> args;
  std::vector<Input> rows_in;
  for (const Floats& x : inputs) {
    args.push_back(graph.input(kF32, Sizes(shape.size(), -1)));
    rows_in.push_back(rows(x, shape));
  }
  const auto y = graph.op(opcode, args, ints, floats);
  return Rig(graph.output(y, out, out_sizes)).run(rows_in);
}

Doubles each(const Floats& x, double (*f)(double)) {
  Doubles out;
  for (const float value : x) out.push_back(f(value));
  return out;
}

void unary_operations() {
  const Floats x = {-1.5f, -0.25f, 0.0f, 0.5f, 2.0f, 3.0f}, positive = {0.1f, 0.25f, 0.5f, 1.0f, 2.0f, 30.0f};
  const auto check = [](std::uint32_t opcode, const Floats& values, double (*f)(double)) {
    check_near(apply(opcode, {values}, {2, 3}), each(values, f));
  };
  check(20, x, [](double v) { return -v; });
  check(21, x, [](double v) { return std::abs(v); });
  check(22, x, [](double v) { return std::exp(v); });
  check(23, positive, [](double v) { return std::log(v); });
  check(24, positive, [](double v) { return std::sqrt(v); });
  check(25, positive, [](double v) { return 1 / std::sqrt(v); });
  check(26, x, [](double v) { return std::sin(v); });
  check(27, x, [](double v) { return std::cos(v); });
  check(28, x, [](double v) { return std::tanh(v); });
  check(29, x, [](double v) { return 1 / (1 + std::exp(-v)); });
  check(30, x, [](double v) { return std::max(v, 0.0); });
  check(31, x, [](double v) { return v / (1 + std::exp(-v)); });
  check(32, x, [](double v) { return 0.5 * v * (1 + std::erf(v / std::numbers::sqrt2)); });
  check(33, x, [](double v) {
    return 0.5 * v * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (v + 0.044715 * v * v * v)));
  });
  check(34, positive, [](double v) { return 1 / v; });
  check(35, x, [](double v) { return std::erf(v); });
  check_near(apply(36, {x}, {2, 3}, {}, {}, kBool), {0, 0, 1, 0, 0, 0});
}

void binary_operations() {
  const Floats a = {1, 2, 3, 4}, b = {3, 2, 2, 0.5f};
  const auto check = [&](std::uint32_t opcode, const Doubles& want, std::uint32_t out = kF32) {
    check_near(apply(opcode, {a, b}, {2, 2}, {}, {}, out), want);
  };
  check(40, {4, 4, 5, 4.5});
  check(41, {-2, 0, 1, 3.5});
  check(42, {3, 4, 6, 2});
  check(43, {1.0 / 3, 1, 1.5, 8});
  check(44, {1, 4, 9, 2});
  check(45, {3, 2, 3, 4});
  check(46, {1, 2, 2, 0.5});
  check(47, {0, 1, 0, 0}, kBool);
  check(48, {1, 0, 1, 1}, kBool);
  check(49, {1, 0, 0, 0}, kBool);
  check(50, {1, 1, 0, 0}, kBool);
  check(51, {0, 0, 1, 1}, kBool);
  check(52, {0, 1, 1, 1}, kBool);
  check_near(apply(60, {{0, 1, 1, 0}, a, b}, {2, 2}), {3, 2, 3, 0.5});
}

void reductions_and_softmax() {
  const Floats x = {1, 2, 3, 4, 5, 9};
  check_near(apply(70, {x}, {2, 3}, {1, -1}), {2, 6});
  check_near(apply(71, {x}, {2, 3}, {0, 0}, {}, kF32, {-1}), {5, 7, 12});
  check_near(apply(72, {x}, {2, 3}, {1, 0, 1}), {9});
  check_near(apply(73, {x}, {2, 3}, {1, 1}), {1, 4});
  const double z = 1 + std::exp(1.0) + std::exp(2.0);
  check_near(apply(10, {{1, 2, 3}}, {1, 3}, {-1}), {1 / z, std::exp(1.0) / z, std::exp(2.0) / z});
  CHECK_THROWS(apply(70, {x}, {2, 3}, {1, 2}), InvalidTensor, "instruction 0 (MEAN of float32 [2, 3])",
               "no dimension 2");
  CHECK_THROWS(apply(71, {x}, {2, 3}, {1, 0, -2}), InvalidTensor, "SUM");
  CHECK_THROWS(apply(10, {x}, {2, 3}, {-3}), InvalidTensor, "no dimension -3");
}

// A mean of 65,536 halves is right although their sum has no half.
void halves_are_summed_as_floats() {
  GraphWriter graph;
  const auto x = graph.input(kF32, {-1});
  const auto mean = graph.op(70, {graph.op(11, {x}, {kF16})}, {0, 0});
  Rig rig(graph.output(mean, kF16, {}));
  check_near(rig.run({rows(Floats(65536, 3.0f), {65536})}), {3});
}

void shapes() {
  const Floats x = {0, 1, 2, 3, 4, 5};
  check_near(apply(13, {x}, {2, 3}, {3, -1}), {0, 1, 2, 3, 4, 5});
  check_near(apply(14, {x}, {2, 3}, {1, 0}), {0, 3, 1, 4, 2, 5});
  check_near(apply(15, {x}, {2, 3}, {1, 0, kToEnd, 2}), {0, 2, 3, 5});
  check_near(apply(15, {x}, {2, 3}, {0, -1, kToEnd, 1}), {3, 4, 5});
  check_near(apply(15, {x}, {2, 3}, {1, -2, -1, 1}), {1, 4});
  check_near(apply(16, {x, x}, {2, 3}, {1}), {0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5});
  check_near(apply(17, {x}, {1, 6}, {2, -1}), {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5});
  check_near(apply(17, {{7}}, {1}, {2, 2}), {7, 7, 7, 7});
  check_near(apply(12, {}, {}, {kI32}, {-3}, kI32, {}), {-3});
  check_near(apply(12, {}, {}, {kF16}, {0.5}, kF16, {}), {0.5});

  const auto refused = [&](std::uint32_t opcode, const Sizes& ints, const std::string& why) {
    CHECK_THROWS(apply(opcode, {x}, {2, 3}, ints), InvalidTensor, "of float32 [2, 3]", why);
  };
  refused(13, {4, -1}, "RESHAPE");
  refused(13, {7}, "RESHAPE");
  refused(14, {0}, "1 dimensions in another order");
  refused(14, {0, 0}, "dimension 0 twice");
  refused(14, {0, 2}, "no dimension 2");
  refused(15, {2, 0, 1, 1}, "no dimension 2");
  refused(15, {1, 0, 4, 1}, "from 0 to 4 of 3 elements");
  refused(15, {1, 2, 1, 1}, "from 2 to 1 of 3 elements");
  refused(15, {1, -4, 2, 1}, "from -4 to 2 of 3 elements");
  refused(17, {-1, 2, 3}, "a size of -1");
  refused(17, {3}, "fewer dimensions");
  refused(17, {2, 4}, "BROADCAST");
}

void matrices() {
  GraphWriter graph;
  const auto x = graph.input(kF32, {-1, 3});
  const auto weight = graph.constant("w", kF32, {2, 3}), bias = graph.constant("b", kF32, {2});
  const auto plain = graph.op(1, {x, weight, -1}), shifted = graph.op(1, {x, weight, bias});
  const auto product = graph.op(9, {plain, shifted});
  graph.output(graph.op(16, {plain, shifted, product}, {0}), kF32, {-1, 2});
  Rig rig(graph, [] {
    return Rig::Constants{{"w", mx::array({1, 2, 3, 4, 5, 6}, {2, 3}, mx::float32)},
                          {"b", mx::array({10, 20}, {2}, mx::float32)}};
  });
  check_near(rig.run({rows(Floats{1, 0, 0, 0, 1, 1}, {2, 3})}),
             {1, 4, 5, 11, 11, 24, 15, 31, 71, 148, 11 * 5 + 15 * 11, 24 * 5 + 31 * 11});
}

void linears_that_do_not_fit_are_refused() {
  const auto linear = [](const Sizes& weight, const Sizes& bias, std::uint32_t dtype = kF32) {
    GraphWriter graph;
    const auto x = graph.input(kF32, {-1, -1});
    const auto w = graph.constant("w", dtype, weight), b = graph.constant("b", kF32, bias);
    graph.output(graph.op(1, {x, w, b}), kF32, {-1, -1});
    const auto shape = [](const Sizes& sizes) { return mx::Shape(sizes.begin(), sizes.end()); };
    const auto type = dtype == kF16 ? mx::float16 : mx::float32;
    return Rig(graph,
               [&] {
                 return Rig::Constants{{"w", mx::zeros(shape(weight), type)},
                                       {"b", mx::zeros(shape(bias), mx::float32)}};
               })
        .run({rows(Floats(6), {2, 3})});
  };
  CHECK_EQ(linear({4, 3}, {4}).size(), 8u);
  CHECK_THROWS(linear({3, 4}, {3}), InvalidTensor, "(LINEAR of float32 [2, 3], float32 [3, 4]", "does not fit");
  CHECK_THROWS(linear({4, 3}, {1}), InvalidTensor, "its bias does not have 4 elements");
  CHECK_THROWS(linear({4, 3}, {1, 4}), InvalidTensor, "its bias does not have 4 elements");
  CHECK_THROWS(linear({4, 3}, {4}, kF16), InvalidTensor, "does not fit its rows");
  CHECK_THROWS(linear({4}, {4}), InvalidTensor, "does not fit its rows");
}

void norms() {
  const Floats x = noise(24);
  const auto norm = [&](std::uint32_t opcode, bool with_weight, bool with_bias) {
    GraphWriter graph;
    const auto in = graph.input(kF32, {-1, 8});
    const auto w = graph.constant("w", kF32, {8}), b = graph.constant("b", kF32, {8});
    std::vector<std::int32_t> args = {in, with_weight ? w : -1};
    if (opcode == 6) args.push_back(with_bias ? b : -1);
    graph.output(graph.op(opcode, args, {}, {1e-3}), kF32, {-1, 8});
    return Rig(graph, [] { return Rig::Constants{{"w", mx::full({8}, 2.0f)}, {"b", mx::full({8}, 3.0f)}}; })
        .run({rows(x, {3, 8})});
  };
  const auto want = [&](bool centred, double weight, double bias) {
    Doubles out;
    for (std::size_t row = 0; row < 3; ++row) {
      double mean = 0, square = 0;
      for (std::size_t i = 0; i < 8 && centred; ++i) mean += x[row * 8 + i] / 8;
      for (std::size_t i = 0; i < 8; ++i) square += std::pow(x[row * 8 + i] - mean, 2) / 8;
      for (std::size_t i = 0; i < 8; ++i) {
        out.push_back((x[row * 8 + i] - mean) / std::sqrt(square + 1e-3) * weight + bias);
      }
    }
    return out;
  };
  check_near(norm(5, false, false), want(false, 1, 0));
  check_near(norm(5, true, false), want(false, 2, 0));
  check_near(norm(6, false, false), want(true, 1, 0));
  check_near(norm(6, true, false), want(true, 2, 0));
  check_near(norm(6, true, true), want(true, 2, 3));
}

void values_are_dropped_after_their_last_use() {
  GraphWriter graph;
  const auto x = graph.input(kF32, {-1});
  auto y = graph.op(20, {x});
  for (int i = 0; i < 20; ++i) y = graph.op(20, {y});
  Rig rig(graph.output(y, kF32, {-1}));
  const Floats values(1 << 20, 1.0f);
  agentkv::mlx::on_owner([] { mx::reset_peak_memory(); });
  const std::size_t before = mx::get_active_memory();
  CHECK_EQ(rig.run({rows(values, {1 << 20})}).size(), values.size());
  CHECK(mx::get_peak_memory() - before < 3 * (sizeof(float) << 20));
  CHECK_EQ(mx::get_active_memory(), before);
}

void inputs_and_outputs_are_checked() {
  GraphWriter graph;
  const auto x = graph.input(kF32, {-1, 4});
  Rig rig(graph.output(graph.op(20, {x}), kF32, {-1, 3}));
  CHECK_THROWS(rig.run({}), InvalidTensor, "0 inputs, not 1");
  CHECK_THROWS(rig.run({rows(Floats(8), {8})}), InvalidTensor, "input 0 is float32 [8], not float32 [?, 4]");
  CHECK_THROWS(rig.run({rows(Ints(8))}), InvalidTensor, "input 0 is int64 [8]");
  CHECK_THROWS(rig.run({rows(Floats(8), {2, 4})}), InvalidTensor, "output 0 is float32 [2, 4], not float32 [?, 3]");
}

}  // namespace

int main() {
  unary_operations();
  binary_operations();
  reductions_and_softmax();
  halves_are_summed_as_floats();
  shapes();
  matrices();
  linears_that_do_not_fit_are_refused();
  norms();
  values_are_dropped_after_their_last_use();
  inputs_and_outputs_are_checked();
  return 0;
}
