// Linear layers against sums in float64, and against the arithmetic that kernels/linear_table.h prescribes, to the bit:
// for any number of rows, on every instruction set, on any number of threads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/errors.h"
#include "core/isa.h"
#include "cpp/check.h"
#include "cpu/linear/linear.h"
#include "linear/weights.h"
#include "same_bits.h"
#include "thread_pool.h"

using namespace agentkv;
using namespace agentkv::cpu;
using namespace agentkv::cpu::testing;

namespace {

constexpr int kRows = 70;

// Rows as a model has them, and between them those that are at the ends of what there can be.
std::vector<float> activations(int rows, int inputs) {
  constexpr float kMax = std::numeric_limits<float>::max(), kInf = std::numeric_limits<float>::infinity();
  const auto n = static_cast<std::size_t>(inputs);
  std::vector<float> x(static_cast<std::size_t>(rows) * n);
  std::minstd_rand rng(5);
  std::normal_distribution<float> normal(0, 2);
  for (float& value : x) value = normal(rng);
  const auto row = [&](int r) { return std::span(x).subspan(static_cast<std::size_t>(r) * n, n); };
  std::ranges::fill(row(1), 0.0f);
  std::ranges::fill(row(2), 3.5f);
  std::ranges::fill(row(3), -0.01f);
  row(4)[n / 2] = 1e30f;
  row(5)[n - 1] = -2e4f;
  row(6)[n - 1] = kInf;
  row(7)[0] = std::numeric_limits<float>::quiet_NaN();
  std::ranges::fill(row(8), 1e-38f);
  row(9)[0] = kMax, row(9)[1] = -kMax;
  for (float& value : row(10)) value = std::abs(value);
  for (std::size_t i = 0; i < n; ++i) row(11)[i] = i % 2 == 0 ? 1.0f : -1.0f;
  row(12)[n - 1] = -kInf;
  return x;
}

struct Case {
  Weights weights;
  AlignedBytes bytes;
  PackedLinear packed;
  std::vector<float> bias;
  std::string name;

  Case(const LinearShape& shape, bool with_bias)
      : weights(shape, 11),
        bytes(weights.packed()),
        packed(shape, bytes.span()),
        name(std::to_string(shape.bits) + " bits, " + std::to_string(shape.inputs) + " -> " +
             std::to_string(shape.outputs) + ", group " + std::to_string(shape.group)) {
    for (int n = 0; with_bias && n < shape.outputs; ++n) bias.push_back(0.3f * static_cast<float>(n % 7) - 1);
  }

  std::size_t outputs() const { return static_cast<std::size_t>(weights.shape.outputs); }

  // y of rows [first, first + rows) of x, and nothing beside it.
  std::vector<float> run(const std::vector<float>& x, int first, int rows, const ParallelFor& parallel_for) const {
    const auto inputs = static_cast<std::size_t>(weights.shape.inputs);
    const std::size_t stride = outputs() + 3;
    QuantizedRows codes;
    codes.assign(x.data() + static_cast<std::size_t>(first) * inputs, rows, weights.shape.inputs, inputs, parallel_for);
    std::vector<float> wide(static_cast<std::size_t>(rows) * stride, -7.0f), y;
    linear(codes, packed, bias, wide.data(), stride, parallel_for);
    for (int r = 0; r < rows; ++r) {
      const float* row = wide.data() + static_cast<std::size_t>(r) * stride;
      y.insert(y.end(), row, row + outputs());
      for (std::size_t i = outputs(); i < stride; ++i) CHECK_EQ(row[i], -7.0f);
    }
    return y;
  }

  // One output, as prescribed; checked against the same in float64 within what the roundings allow.
  float expected(const QuantizedRows& x, int row, int output) const {
    const LinearShape& shape = weights.shape;
    const RowCodes& view = x.view();
    const std::int8_t* codes = view.codes + static_cast<std::size_t>(row) * view.stride;
    const auto first = static_cast<std::size_t>(output) * static_cast<std::size_t>(shape.inputs);
    const int group = std::min(shape.group, shape.bits == 4 ? 64 : shape.inputs);
    float sum = 0;
    double exact = 0, column = 0, magnitude = 0;
    for (int k = 0; k < shape.inputs; k += group) {
      const float kept = weights.scales[(first + static_cast<std::size_t>(k)) / static_cast<std::size_t>(shape.group)];
      const float scale = shape.bits == 4 ? nearest_bfloat16(kept) : kept;
      std::int64_t dot = 0, total = 0;
      for (int i = k; i < k + group; ++i) {
        const int code = weights.codes[first + static_cast<std::size_t>(i)];
        dot += codes[i] * code;
        total += code;
        exact += double{scale} * code * (codes[i] - double{view.zeros[row]});
      }
      sum = sum + static_cast<float>(dot) * scale;
      column += double{scale} * static_cast<double>(total);
      magnitude += std::abs(static_cast<double>(dot) * scale);
    }
    const float zero = view.zeros[row], scale = view.scales[row], added = bias.empty() ? 0.0f : bias[output];
    const float moved = sum - zero * static_cast<float>(column), scaled = moved * scale, y = scaled + added;
    const double wanted = exact * scale + added;
    const double steps = shape.inputs / group + 4;
    const double allowed = 0x1p-24 * (steps * scale * (magnitude + std::abs(zero * column)) + 2 * std::abs(wanted));
    if (std::abs(wanted) < 1e38 && std::isfinite(scale)) CHECK(std::abs(y - wanted) <= allowed);
    return y;
  }

  std::vector<float> all_expected(const std::vector<float>& x, int rows) const {
    QuantizedRows codes;
    codes.assign(x.data(), rows, weights.shape.inputs, static_cast<std::size_t>(weights.shape.inputs), nullptr);
    std::vector<float> y;
    for (int r = 0; r < rows; ++r) {
      for (int n = 0; n < weights.shape.outputs; ++n) y.push_back(expected(codes, r, n));
    }
    return y;
  }
};

// Every number of rows, from the start and from the end of x, against what each row is by itself.
void check_rows(const Case& c, const std::vector<float>& x, const std::vector<float>& want, const ParallelFor& two) {
  for (int rows = 1; rows <= kRows; ++rows) {
    for (const int first : {0, kRows - rows}) {
      const auto expected = std::span(want).subspan(static_cast<std::size_t>(first) * c.outputs(),
                                                    static_cast<std::size_t>(rows) * c.outputs());
      const std::string what = std::string(isa()) + ", " + c.name + ", " + std::to_string(rows) + " rows";
      check_same(c.run(x, first, rows, rows % 2 == 0 ? two : nullptr), expected, what);
    }
  }
}

void check_shape(const LinearShape& shape, bool with_bias, const ParallelFor& two) {
  const Case c(shape, with_bias);
  const std::vector<float> x = activations(kRows, shape.inputs);
  const std::vector<float> want = c.all_expected(x, kRows);
  for (const int row : {6, 7, 12}) CHECK(std::isnan(want[static_cast<std::size_t>(row) * c.outputs()]));
  for (const std::string_view isa : available_isas()) {
    set_isa(isa);
    check_rows(c, x, want, two);
  }
}

// More rows than kernels keep sums of, and enough outputs for many tasks.
void check_large(const LinearShape& shape, const ParallelFor& parallel_for) {
  const Case c(shape, true);
  const int rows = kScratchRows + 21;
  const std::vector<float> x = activations(rows, shape.inputs);
  set_isa(available_isas().back());
  const std::vector<float> want = c.run(x, 0, rows, nullptr);
  for (const std::string_view isa : available_isas()) {
    set_isa(isa);
    check_same(c.run(x, 0, rows, parallel_for), want, std::string(isa) + ", many rows of " + c.name);
  }
}

// The largest products that there are, all of one sign.
void check_extremes(const ParallelFor& two) {
  for (const LinearShape& shape : {LinearShape{32, 128, 4, 64}, LinearShape{32, 65536, 8, 65536}}) {
    Case c(shape, false);
    std::ranges::fill(c.weights.codes, static_cast<std::int8_t>(-(1 << (shape.bits - 1))));
    c.bytes = c.weights.packed();
    c.packed = PackedLinear(shape, c.bytes.span());
    std::vector<float> x(static_cast<std::size_t>(shape.inputs) * 5, -1.0f);
    for (std::size_t i = 0; i < x.size(); i += 64) x[i] = 1e-3f;
    const std::vector<float> want = c.all_expected(x, 5);
    for (const std::string_view isa : available_isas()) {
      set_isa(isa);
      for (const int rows : {1, 5}) {
        check_same(c.run(x, 0, rows, two), std::span(want).first(static_cast<std::size_t>(rows) * 32), c.name);
      }
    }
  }
}

void check_refusals() {
  const Case c({32, 64, 4, 32}, false);
  std::vector<float> x(128), y(64);
  QuantizedRows rows;
  CHECK_THROWS(rows.assign(x.data(), 2, 64, 63, nullptr), InvalidTensor, "64 inputs", "63 apart");
  rows.assign(x.data(), 1, 128, 128, nullptr);
  CHECK_THROWS(linear(rows, c.packed, {}, y.data(), 32, nullptr), InvalidTensor, "rows of 128", "weight of 64");
  rows.assign(x.data(), 2, 64, 64, nullptr);
  CHECK_THROWS(linear(rows, c.packed, std::span(x).first(31), y.data(), 32, nullptr), InvalidTensor, "a bias of 31");
  CHECK_THROWS(linear(rows, c.packed, {}, y.data(), 31, nullptr), InvalidTensor, "31 apart");
  rows.assign(x.data(), 0, 64, 64, nullptr);
  linear(rows, c.packed, {}, nullptr, 32, nullptr);
}

}  // namespace

int main() {
  ThreadPool pool(2), crowd(5);
  const ParallelFor two = [&](std::size_t n, const auto& task) { pool.run(n, task); };
  const ParallelFor five = [&](std::size_t n, const auto& task) { crowd.run(n, task); };
  check_refusals();
  check_shape({70, 192, 4, 32}, true, two);
  check_shape({33, 1120, 4, 32}, false, two);  // an odd number of groups, more than one piece
  check_shape({5, 32, 4, 32}, true, two);
  check_shape({47, 1088, 4, 64}, true, two);
  check_shape({64, 640, 4, 128}, false, two);
  check_shape({70, 200, 8, 200}, true, two);
  check_shape({1, 3, 8, 3}, false, two);
  check_shape({40, 257, 8, 257}, false, two);
  check_extremes(two);
  check_large({300, 1024, 4, 32}, five);
  check_large({300, 512, 8, 512}, five);
}
