// Calls of layers of experts: who chooses which, and rows that lie further apart than they are wide.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "cpp/check.h"
#include "cpp/numbers.h"
#include "cpu/heads_view.h"

namespace agentkv::cpu::testing {

inline std::vector<float> random_floats(std::size_t n, unsigned seed) {
  std::minstd_rand rng(seed);
  std::vector<float> x(n);
  for (float& value : x) value = agentkv::testing::normal(rng);
  return x;
}

struct Routing {
  int rows, choices;
  std::vector<std::int64_t> chosen;

  Routing(int rows, int choices, int n_experts, unsigned seed) : rows(rows), choices(choices) {
    std::minstd_rand rng(seed);
    for (int slot = 0; slot < rows * choices; ++slot) chosen.push_back(static_cast<std::int64_t>(rng()) % n_experts);
    // An expert that many rows meet, whatever else there is.
    for (int row = 0; row < rows; row += 2) chosen[static_cast<std::size_t>(row * choices)] = 1 % n_experts;
  }
};

// layer(x, y) -> y of all slots; x has rows of its own for each slot, or one for all choices.
template <class Layer>
std::vector<float> run_experts(const Routing& routing, int inputs, int outputs, std::span<const float> x, bool per_slot,
                               const Layer& layer) {
  const auto size = [](int n) { return static_cast<std::size_t>(n); };
  const int wide_x = inputs + 8, wide_y = outputs + 5;
  const int slots = routing.rows * routing.choices, x_rows = per_slot ? slots : routing.rows;
  std::vector<float> apart(size(x_rows) * size(wide_x), NAN);
  for (int r = 0; r < x_rows; ++r) {
    std::memcpy(apart.data() + r * wide_x, x.data() + r * inputs, size(inputs) * sizeof(float));
  }
  std::vector<float> wide(size(slots) * size(wide_y), -7.0f), y;
  const int x_heads = per_slot ? routing.choices : 1;
  layer(HeadsView{apart.data(), x_heads, routing.rows, inputs, wide_x, std::int64_t{wide_x} * x_heads},
        MutableHeadsView{wide.data(), routing.choices, routing.rows, outputs, wide_y,
                         std::int64_t{wide_y} * routing.choices});
  for (int slot = 0; slot < slots; ++slot) {
    const float* at = wide.data() + slot * wide_y;
    y.insert(y.end(), at, at + outputs);
    for (int i = outputs; i < wide_y; ++i) CHECK_EQ(at[i], -7.0f);
  }
  return y;
}

}  // namespace agentkv::cpu::testing
