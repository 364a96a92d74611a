// Rotary positions and attention over a cache.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/errors.h"
#include "mlx/graph_rig.h"

namespace {

using agentkv::InvalidTensor;
using agentkv::SeqId;
using namespace agentkv::testing;
using Doubles = std::vector<double>;

constexpr int kHeads = 4, kKvHeads = 2, kDim = 16;

// x [1, 2, T, 16] turned as RoPE is written down.
Doubles turned(const Floats& x, const Ints& position, const Floats& inv_freq, bool interleaved, double scaling) {
  Doubles out(x.begin(), x.end());
  const std::size_t n = inv_freq.size();
  for (std::size_t row = 0; row < x.size() / kDim; ++row) {
    for (std::size_t f = 0; f < n; ++f) {
      const double angle = static_cast<double>(position[row % position.size()]) * inv_freq[f];
      const std::size_t i = row * kDim + (interleaved ? 2 * f : f), j = i + (interleaved ? 1 : n);
      out[i] = scaling * (x[i] * std::cos(angle) - x[j] * std::sin(angle));
      out[j] = scaling * (x[j] * std::cos(angle) + x[i] * std::sin(angle));
    }
  }
  return out;
}

void rope_turns_each_row_by_its_own_position() {
  for (const Ints& position : {Ints{5}, Ints{0, 1, 2}, Ints{7, 700, 3, 1999}}) {
    const int n = static_cast<int>(position.size());
    const Floats x = noise(static_cast<std::size_t>(2 * n * kDim));
    for (const auto& [inv_freq, interleaved, scaling] :
         {std::tuple<Floats, bool, double>{{1, 0.5f, 0.25f, 0.1f, 0.05f, 0.01f, 0.002f, 0.0001f}, false, 1},
          {{1, 0.5f, 0.25f, 0.1f, 0.05f, 0.01f, 0.002f, 0.0001f}, true, 1.2},
          {{1, 0.03f, 0}, false, 1.5},
          {{1, 0.03f, 0}, true, 1}}) {
      const Floats& freq = inv_freq;
      for (const auto& [dtype, tolerance] : {std::pair<std::uint32_t, double>{kF32, 2e-4}, {kF16, 4e-3}}) {
        GraphWriter graph;
        const auto in = graph.input(kF32, {1, 2, -1, kDim}), at = graph.input(kI64, {-1});
        const auto f = graph.constant("f", kF32, {static_cast<std::int64_t>(freq.size())});
        const auto y = graph.op(7, {graph.op(11, {in}, {dtype}), at, f}, {interleaved ? 1 : 0}, {scaling});
        Rig rig(graph.output(y, dtype, {1, 2, -1, kDim}), [&] {
          return Rig::Constants{{"f", mx::array(freq.data(), {static_cast<int>(freq.size())}, mx::float32)}};
        });
        check_near(rig.run({rows(x, {1, 2, n, kDim}), rows(position)}), turned(x, position, freq, interleaved, scaling),
                   tolerance);
      }
    }
  }
}

void rope_refuses_what_does_not_fit() {
  const auto run = [](mx::Shape shape, std::size_t positions, int frequencies) {
    std::size_t size = 1;
    for (const int n : shape) size *= static_cast<std::size_t>(n);
    GraphWriter graph;
    const auto in = graph.input(kF32, Sizes(shape.size(), -1)), at = graph.input(kI64, {-1});
    const auto f = graph.constant("f", kF32, {frequencies});
    graph.output(graph.op(7, {in, at, f}, {0}, {1}), kF32, Sizes(shape.size(), -1));
    return Rig(graph, [&] { return Rig::Constants{{"f", mx::ones({frequencies})}}; })
        .run({rows(Floats(size), shape), rows(Ints(positions))});
  };
  CHECK_EQ(run({1, 2, 3, 8}, 3, 4).size(), 48u);
  CHECK_THROWS(run({1, 2, 3, 8}, 2, 4), InvalidTensor, "(ROPE of", "not one per row");
  CHECK_THROWS(run({1, 2, 3, 8}, 1, 4), InvalidTensor, "not one per row");
  CHECK_THROWS(run({1, 2, 3, 8}, 3, 5), InvalidTensor, "more frequencies");
  CHECK_THROWS(run({2, 3, 8}, 3, 4), InvalidTensor, "not [1, H, T, D]");
  CHECK_THROWS(run({2, 2, 3, 8}, 3, 4), InvalidTensor, "not [1, H, T, D]");
}

// Attention of layer 0, then of layer 1 over what layer 0 gave.
GraphWriter two_layers() {
  GraphWriter graph;
  const auto q = graph.input(kF32, {1, kHeads, -1, kDim});
  const auto k = graph.input(kF32, {1, kKvHeads, -1, kDim});
  const auto position = graph.input(kI64, {-1});
  const auto first = graph.op(8, {q, k, k, position}, {0, 0, kF32}, {0.25});
  const auto second = graph.op(8, {first, k, k, position}, {1, 0, kF16}, {0.25});
  return graph.output(second, kF16, {1, kHeads, -1, kDim});
}

struct Step {
  int n;
  Ints position;
  Floats q, k;

  Step(int first, int rows_n) : n(rows_n) {
    for (int i = 0; i < n; ++i) position.push_back(first + i);
    q = noise(static_cast<std::size_t>(kHeads * n * kDim), static_cast<std::uint32_t>(first + 1));
    k = noise(static_cast<std::size_t>(kKvHeads * n * kDim), static_cast<std::uint32_t>(first + 2));
  }

  Floats run(Rig& rig) const {
    rig.cache.cells->begin_step(std::vector<SeqId>(static_cast<std::size_t>(n), 0));
    try {
      auto out = rig.run({rows(q, {1, kHeads, n, kDim}), rows(k, {1, kKvHeads, n, kDim}), rows(position)});
      rig.cache.cells->commit_step();
      return out;
    } catch (...) {
      rig.cache.cells->abort_step();
      throw;
    }
  }
};

void steps_attend_to_what_earlier_steps_wrote() {
  Rig whole(two_layers()), parts(two_layers());
  const Step all(0, 5);
  const Floats want = all.run(whole);
  // The same rows in chunks of 3 and 2.
  Floats got(want.size());
  for (const auto& [first, n] : {std::pair{0, 3}, {3, 2}}) {
    Step part(first, n);
    const auto cut = [&](const Floats& from, Floats& to, int heads) {
      for (int h = 0; h < heads; ++h) {
        std::copy_n(from.begin() + (h * 5 + first) * kDim, n * kDim, to.begin() + h * n * kDim);
      }
    };
    cut(all.q, part.q, kHeads);
    cut(all.k, part.k, kKvHeads);
    const Floats out = part.run(parts);
    for (int h = 0; h < kHeads; ++h) {
      std::copy_n(out.begin() + h * n * kDim, n * kDim, got.begin() + (h * 5 + first) * kDim);
    }
  }
  check_near(got, Doubles(want.begin(), want.end()), 1e-3);
}

void a_failure_between_layers_leaves_the_cache_usable() {
  Rig whole(two_layers()), failing(two_layers());
  const Step first(0, 4), second(4, 3);
  first.run(whole);
  first.run(failing);
  std::vector<int> seen;
  failing.cache.cells->before_layer = [&](int layer) {
    seen.push_back(layer);
    if (layer == 1) throw std::runtime_error("injected");
  };
  CHECK_THROWS(second.run(failing), InvalidTensor, "instruction 1 (UPDATE_AND_ATTEND", "injected");
  failing.cache.cells->before_layer = nullptr;
  CHECK(seen == (std::vector<int>{0, 1}));
  const Floats want = second.run(whole), got = second.run(failing);
  CHECK(want == got);
}

// Layer 0, capped, with sinks and slopes; layer 1 attends to what layer 0 wrote, by chunks.
GraphWriter shared_layers(bool written_out) {
  GraphWriter graph;
  const auto q = graph.input(kF32, {1, kHeads, -1, kDim});
  const auto k = graph.input(kF32, {1, kKvHeads, -1, kDim});
  const auto position = graph.input(kI64, {-1});
  const auto sinks = graph.constant("sinks", kF32, {kHeads}), slopes = graph.constant("slopes", kF32, {kHeads});
  const auto first = graph.op(8, {q, k, k, position, sinks, slopes}, {0, 0, kF32}, {0.25, 2});
  const auto second = written_out ? graph.op(8, {first, k, k, position}, {1, 0, kF32, 4, 0}, {0.25})
                                  : graph.op(8, {first, k, k, position}, {0, 0, kF32, 4, 1}, {0.25});
  return graph.output(second, kF32, {1, kHeads, -1, kDim});
}

void layers_attend_to_what_others_wrote() {
  const auto constants = [] {
    return Rig::Constants{{"sinks", mx::array({1.0f, 0.0f, -1.0f, 2.0f})}, {"slopes", mx::full({kHeads}, 0.5f)}};
  };
  Rig shared(shared_layers(false), constants), apart(shared_layers(true), constants);
  for (const auto& [first, n] : {std::pair{0, 6}, {6, 1}, {7, 3}}) {
    const Step step(first, n);
    const Floats got = step.run(shared);
    CHECK(got == step.run(apart));
    CHECK(std::ranges::any_of(got, [&](float x) { return x != got[0]; }));
  }
  GraphWriter graph;
  const auto q = graph.input(kF32, {1, kHeads, -1, kDim}), position = graph.input(kI64, {-1});
  graph.output(graph.op(8, {q, q, q, position}, {0, 0, kF32, -4, 0}, {0.25}), kF32, {1, kHeads, -1, kDim});
  CHECK_THROWS(Rig{graph}, agentkv::ProgramError, "a negative layer, window or chunk");
}

void attention_refuses_what_does_not_fit() {
  Rig rig(two_layers());
  rig.cache.cells->begin_step(std::vector<SeqId>(2, 0));
  const Floats q(kHeads * 2 * kDim), k(kKvHeads * 2 * kDim);
  CHECK_THROWS(rig.run({rows(q, {1, kHeads, 2, kDim}), rows(k, {1, kKvHeads, 2, kDim}), rows(Ints{0, 1, 2})}),
               agentkv::Error, "");
  CHECK_THROWS(rig.run({rows(q, {1, kHeads, 2, kDim}), rows(k, {1, kKvHeads, 2, kDim}), rows(Ints{0, 7})}),
               agentkv::Error, "");
}

}  // namespace

int main() {
  rope_turns_each_row_by_its_own_position();
  rope_refuses_what_does_not_fit();
  steps_attend_to_what_earlier_steps_wrote();
  a_failure_between_layers_leaves_the_cache_usable();
  layers_attend_to_what_others_wrote();
  attention_refuses_what_does_not_fit();
  return 0;
}
