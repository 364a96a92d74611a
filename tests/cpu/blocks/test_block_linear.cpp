// Linear layers over blocks against the arithmetic that kernels/block_table.h prescribes, to the bit, and against sums
// in float64: for every block type, any number of rows, on every instruction set, on any number of threads. Types are
// rows of cpu/blocks/formats.h: a new one is tested here as soon as it is there.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "blocks/random_blocks.h"
#include "core/errors.h"
#include "core/isa.h"
#include "cpp/check.h"
#include "cpu/blocks/activation_blocks.h"
#include "cpu/blocks/block_linear.h"
#include "cpu/blocks/formats.h"
#include "cpu/blocks/packing.h"
#include "linear/weights.h"
#include "same_bits.h"
#include "thread_pool.h"

using namespace agentkv;
using namespace agentkv::cpu;
using namespace agentkv::cpu::testing;

namespace {

constexpr int kRows = 41;

std::size_t size(int n) { return static_cast<std::size_t>(n); }

// Rows as a model has them, and between them those that are at the ends of what there can be.
std::vector<float> activations(int rows, int inputs) {
  std::vector<float> x(size(rows) * size(inputs));
  std::minstd_rand rng(5);
  std::normal_distribution<float> normal(0, 2);
  for (float& value : x) value = normal(rng);
  const auto row = [&](int r) { return std::span(x).subspan(size(r) * size(inputs), size(inputs)); };
  std::ranges::fill(row(1), 0.0f);
  std::ranges::fill(row(2), -3.5f);
  row(3)[size(inputs) / 2] = 1e30f;
  row(4)[size(inputs) - 1] = std::numeric_limits<float>::infinity();
  row(5)[0] = std::numeric_limits<float>::quiet_NaN();
  std::ranges::fill(row(6), 1e-38f);
  row(7)[0] = std::numeric_limits<float>::max(), row(7)[1] = -std::numeric_limits<float>::max();
  for (std::size_t i = 0; i < size(inputs); ++i) row(8)[i] = i % 2 == 0 ? 1.0f : -1.0f;
  return x;
}

float scale_of(const ActivationCodes& x, int row, int block) {
  const RowPlace place(x, row);
  return x.scales[place.before * x.scale_stride + size(block) * place.rows + place.row];
}

// One output of a row, as prescribed.
template <class F>
float expected(const std::byte* blocks, int inputs, const ActivationCodes& x, int row, float bias) {
  constexpr int kGroups = F::kInputs / F::kGroup;
  const RowPlace place(x, row);
  const std::int8_t* codes = x.codes + place.before * x.stride + 4 * place.row;
  float sum = 0;
  for (int b = 0; b < inputs / F::kInputs; ++b) {
    Block block;
    F::unpack(reinterpret_cast<const std::uint8_t*>(blocks) + b * F::kBytes, block);
    std::int64_t products = 0, offsets = 0;
    for (int k = 0; k < F::kInputs; ++k) {
      const int g = k / F::kGroup, quad = (b * F::kInputs + k) / 4,
                code = codes[4 * size(quad) * place.rows + size(k % 4)];
      const int value = F::kValues == nullptr ? block.codes[k] - F::kOffset : F::kValues[block.codes[k]];
      products += std::int64_t{kGroups > 1 ? block.scales[g] : 1} * value * code;
      offsets += std::int64_t{kGroups > 1 ? block.minima[g] : 1} * code;
    }
    const float s = scale_of(x, row, b);
    sum = std::fma(static_cast<float>(products) * s, float_of(F::kScaleKind, block.scale), sum);
    if (F::kHasMinimum) {
      sum = std::fma(-(static_cast<float>(offsets) * s), float_of(ScaleKind::Binary16, block.minimum), sum);
    }
  }
  return sum + bias;
}

struct Case {
  BlockShape shape;
  std::vector<std::byte> rows;
  AlignedBytes bytes;
  BlockWeight weight;
  std::vector<float> bias;

  Case(const BlockShape& shape, bool with_bias)
      : shape(shape), rows(random_rows(shape, 3)), bytes(packed(shape, rows)), weight(shape, bytes.span()) {
    for (int n = 0; with_bias && n < shape.outputs; ++n) bias.push_back(0.3f * static_cast<float>(n % 7) - 1);
  }

  static AlignedBytes packed(const BlockShape& shape, std::span<const std::byte> rows) {
    AlignedBytes out(block_panel_bytes(shape));
    pack_blocks(shape, rows, out.span());
    return out;
  }

  std::string name() const {
    return std::string(block_type_info(static_cast<int>(shape.type)).name) + ", " + std::to_string(shape.inputs) +
           " -> " + std::to_string(shape.outputs);
  }

  // y of rows [first, first + n) of x, and nothing beside it.
  std::vector<float> run(const std::vector<float>& x, int first, int n, const ParallelFor& parallel_for) const {
    const std::size_t outputs = size(shape.outputs), stride = outputs + 3;
    std::vector<float> wide(size(n) * stride, -7.0f), y;
    block_linear(x.data() + size(first) * size(shape.inputs), size(shape.inputs), n, weight, bias, wide.data(), stride,
                 parallel_for);
    for (int r = 0; r < n; ++r) {
      const float* row = wide.data() + size(r) * stride;
      y.insert(y.end(), row, row + outputs);
      for (std::size_t i = outputs; i < stride; ++i) CHECK_EQ(row[i], -7.0f);
    }
    return y;
  }

  // As prescribed, from the file's bytes; every output within what roundings to 8 bits allow of the sum in float64.
  template <class F>
  std::vector<float> all_expected(const std::vector<float>& x) const {
    ActivationBlocks codes;
    codes.assign(x.data(), kRows, shape.inputs, size(shape.inputs), shape.type, nullptr);
    std::vector<float> y, weights(size(shape.inputs));
    for (int r = 0; r < kRows; ++r) {
      for (int n = 0; n < shape.outputs; ++n) {
        const float added = bias.empty() ? 0.0f : bias[size(n)];
        y.push_back(expected<F>(rows.data() + size(n) * block_row_bytes(shape), shape.inputs, codes.view(), r, added));
        if (r >= 1 && r <= 7) continue;
        weight.read_row(n, weights);
        double exact = added, allowed = 0;
        for (int k = 0; k < shape.inputs; ++k) {
          const double value = x[size(r) * size(shape.inputs) + size(k)];
          exact += value * weights[size(k)];
          const double step = scale_of(codes.view(), r, k / F::kInputs);
          allowed += 0.51 * step * std::abs(double{weights[size(k)]});
        }
        CHECK(std::abs(y.back() - exact) <= allowed + 1e-4 * std::abs(exact) + 1e-4);
      }
    }
    return y;
  }
};

// Every number of rows, from the start and from the end of x, against what each row is by itself.
void check_rows(const Case& c, const std::vector<float>& x, const std::vector<float>& want, const ParallelFor& two) {
  const std::size_t outputs = size(c.shape.outputs);
  for (int rows = 1; rows <= kRows; ++rows) {
    for (const int first : {0, kRows - rows}) {
      check_same(c.run(x, first, rows, rows % 2 == 0 ? two : nullptr),
                 std::span(want).subspan(size(first) * outputs, size(rows) * outputs),
                 std::string(isa()) + ", " + c.name() + ", " + std::to_string(rows) + " rows");
    }
  }
}

template <class F>
void test_format(const ParallelFor& two) {
  for (const auto& [blocks, outputs, with_bias] : {std::tuple{1, 1, false}, {3, 70, true}, {19, 33, false}}) {
    if (F::kInputs == 256 && blocks > 3) continue;
    const Case c({outputs, blocks * F::kInputs, F::kType}, with_bias);
    const std::vector<float> x = activations(kRows, c.shape.inputs);
    const std::vector<float> want = c.all_expected<F>(x);
    for (const std::string_view each : available_isas()) {
      set_isa(each);
      check_rows(c, x, want, two);
    }
    set_isa(available_isas().front());
  }
}

// Weights that are floats: a chain over the inputs, the same for any number of rows.
void test_floats(BlockType type, const ParallelFor& two) {
  for (const int outputs : {1, 45}) {
    const Case c({outputs, 50, type}, outputs > 1);
    const std::vector<float> x = activations(kRows, 50);
    std::vector<float> row(50);
    for (const std::string_view each : available_isas()) {
      set_isa(each);
      std::vector<float> want;
      for (int r = 0; r < kRows; ++r) {
        for (int n = 0; n < outputs; ++n) {
          c.weight.read_row(n, row);
          float sum = 0;
          for (std::size_t k = 0; k < 50; ++k) {
            const float value = x[size(r) * 50 + k];
            sum = each == "v2" ? sum + value * row[k] : std::fma(value, row[k], sum);
          }
          want.push_back(sum + (c.bias.empty() ? 0.0f : c.bias[size(n)]));
        }
      }
      check_rows(c, x, want, two);
    }
    set_isa(available_isas().front());
  }
}

template <class F>
void test_panels_keep_values() {
  const BlockShape shape{37, 2 * F::kInputs, F::kType};
  const Case c(shape, false);
  std::vector<float> got(size(shape.inputs)), want(size(shape.inputs));
  for (int n = 0; n < shape.outputs; ++n) {
    c.weight.read_row(n, got);
    for (int b = 0; b < 2; ++b) {
      Block block;
      const std::byte* at = c.rows.data() + size(n) * block_row_bytes(shape) + size(b) * F::kBytes;
      F::unpack(reinterpret_cast<const std::uint8_t*>(at), block);
      block_values<F>(block, want.data() + b * F::kInputs);
    }
    check_same(got, want, c.name() + ", row " + std::to_string(n));
  }
  std::vector<float> looked_up(3 * size(shape.inputs));
  block_lookup(c.weight, std::vector<std::int64_t>{36, 0, 36}, 0.5f, looked_up.data(), size(shape.inputs), nullptr);
  for (float& value : want) value *= 0.5f;
  check_same(std::span(looked_up).first(want.size()), want, c.name() + ", looked up");
}

// Bytes of any kind: a weight that can be multiplied with, or a typed error.
void test_random_bytes() {
  std::minstd_rand rng(9);
  int kept = 0, refused = 0;
  for (const BlockTypeInfo& info : block_types()) {
    for (int round = 0; round < 40; ++round) {
      const BlockShape shape{3, 2 * info.inputs, info.type};
      std::vector<std::byte> rows(3 * block_row_bytes(shape));
      const int kind = round % 4;  // random bytes, all ones, all zeros, or their ends alone
      for (std::byte& each : rows) {
        each = kind == 1   ? std::byte{255}
               : kind == 2 ? std::byte{0}
                           : static_cast<std::byte>(kind == 0 ? rng() : rng() % 2 * 255);
      }
      AlignedBytes out(block_panel_bytes(shape));
      std::ranges::fill(out.span(), std::byte{77});
      try {
        pack_blocks(shape, rows, out.span());
      } catch (const InvalidTensor&) {
        ++refused;
        CHECK(std::ranges::all_of(out.span(), [](std::byte each) { return each == std::byte{77}; }));
        continue;
      }
      ++kept;
      std::vector<float> x(size(shape.inputs), 1.0f), y(3);
      block_linear(x.data(), x.size(), 1, BlockWeight(shape, out.span()), {}, y.data(), 3, nullptr);
      for (const float value : y) CHECK(!std::isnan(value));
    }
  }
  CHECK(kept > 0 && refused > 0);
}

void test_errors() {
  const BlockShape shape{4, 64, BlockType::Q4_0};
  AlignedBytes out(block_panel_bytes(shape));
  std::vector<std::byte> rows(4 * block_row_bytes(shape));
  CHECK_THROWS(block_type_info(99), InvalidTensor, "99", "q4_0", "mxfp4");
  CHECK_THROWS(block_row_bytes({4, 33, BlockType::Q4_0}), InvalidTensor, "33", "32", "q4_0");
  CHECK_THROWS(block_row_bytes({4, 320, BlockType::Q4_K}), InvalidTensor, "320", "256", "q4_k");
  CHECK_THROWS(block_row_bytes({0, 32, BlockType::Q4_0}), InvalidTensor, "0 outputs");
  CHECK_THROWS(pack_blocks(shape, std::span(rows).first(7), out.span()), InvalidTensor, "7 bytes");
  CHECK_THROWS(pack_blocks(shape, rows, out.span().first(64)), InvalidTensor, "64 bytes");
  CHECK_THROWS(BlockWeight(shape, out.span().first(64)), InvalidTensor, "64 bytes");
  CHECK_THROWS(BlockWeight({4, 32, BlockType::Q4_0}, out.span().subspan(8, out.span().size() / 2)), InvalidTensor,
               "multiple of 64");
  pack_blocks(shape, rows, out.span());
  const BlockWeight weight(shape, out.span());
  std::vector<float> x(64), y(64, -7.0f);
  CHECK_THROWS(block_linear(x.data(), 63, 1, weight, {}, y.data(), 4, nullptr), InvalidTensor, "63");
  CHECK_THROWS(block_linear(x.data(), 64, 1, weight, std::span(x).first(3), y.data(), 4, nullptr), InvalidTensor,
               "bias of 3");
  CHECK_THROWS(block_lookup(weight, std::vector<std::int64_t>{0, 4}, 1, y.data(), 64, nullptr), InvalidTensor,
               "row 4 of 4");
  CHECK_EQ(y[0], -7.0f);
}

}  // namespace

int main() {
  ThreadPool pool(2);
  const ParallelFor two = [&](std::size_t n, const auto& task) { pool.run(n, task); };
#define AGENTKV_TEST(F)         \
  test_panels_keep_values<F>(); \
  test_format<F>(two);
  AGENTKV_EACH_BLOCK_FORMAT(AGENTKV_TEST)
  for (const BlockType type : {BlockType::F32, BlockType::F16, BlockType::BF16}) test_floats(type, two);
  test_random_bytes();
  test_errors();
}
