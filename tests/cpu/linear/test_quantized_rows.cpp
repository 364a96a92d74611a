// Codes of rows against the same in float64; the same bytes on every instruction set and any number of threads.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string_view>
#include <vector>

#include "core/isa.h"
#include "cpp/check.h"
#include "cpu/linear/quantized_rows.h"
#include "thread_pool.h"

using namespace agentkv;
using namespace agentkv::cpu;
using namespace agentkv::cpu::testing;

namespace {

constexpr int kRows = 400, kWidth = 203;

std::vector<float> rows_of_all_kinds() {
  std::vector<float> x(kRows * kWidth);
  std::minstd_rand rng(9);
  std::normal_distribution<float> normal(0, 1);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto row = i / kWidth;
    x[i] = normal(rng) * std::pow(10.0f, static_cast<float>(row % 60) - 26) + (row % 3 == 0 ? 0.5f : 0.0f);
    if (row % 5 == 0) x[i] = -std::abs(x[i]);
  }
  return x;
}

// What torchao's asymmetric int8 of a row is, but for roundings at the middle between two codes.
void check_row(const float* x, const RowCodes& got, int row) {
  const std::int8_t* codes = got.codes + static_cast<std::size_t>(row) * got.stride;
  const double low = std::min(0.0f, *std::min_element(x, x + kWidth));
  const double high = std::max(0.0f, *std::max_element(x, x + kWidth));
  const double scale = (high - low) / 255, zero = std::clamp(-128 - std::nearbyint(low / scale), -128.0, 127.0);
  CHECK(std::abs(got.scales[row] - scale) <= 1e-6 * scale);
  CHECK_EQ(static_cast<double>(got.zeros[row]), zero);
  int total = 0;
  for (int i = 0; i < kWidth; ++i) {
    const double code = std::clamp(x[i] / scale + zero, -128.0, 127.0);
    CHECK(std::abs(codes[i] - code) <= 0.5001);
    total += codes[i];
  }
  CHECK_EQ(got.totals[row], total);
  int sums = 0;
  for (std::size_t i = 0; i < got.sum_stride; ++i) sums += got.sums[static_cast<std::size_t>(row) * got.sum_stride + i];
  CHECK_EQ(sums, total);
  for (int i = kWidth; i < 256; ++i) CHECK_EQ(int{codes[i]}, 0);
}

void check_strange_rows() {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> x(6 * kWidth, 1.0f);
  std::fill_n(x.begin(), kWidth, 0.0f);
  std::fill_n(x.begin() + kWidth, kWidth, 1e-39f);
  x[3 * kWidth - 1] = kInf;
  x[3 * kWidth] = -kInf;
  x[4 * kWidth + 17] = std::numeric_limits<float>::quiet_NaN();
  x[5 * kWidth] = std::numeric_limits<float>::max();
  x[5 * kWidth + 1] = std::numeric_limits<float>::lowest();
  QuantizedRows rows;
  rows.assign(x.data(), 6, kWidth, kWidth, nullptr);
  const RowCodes& got = rows.view();
  for (int row = 0; row < 5; ++row) {
    CHECK(row < 2 ? got.scales[row] == 0.0f : std::isnan(got.scales[row]));
    for (int i = 0; i < 256; ++i) CHECK_EQ(int{got.codes[static_cast<std::size_t>(row) * got.stride + i]}, 0);
    CHECK_EQ(got.totals[row], 0);
    CHECK_EQ(got.zeros[row], 0.0f);
  }
  CHECK(std::isfinite(got.scales[5]));
  CHECK_EQ(int{got.codes[5 * got.stride]}, 127);
  CHECK_EQ(int{got.codes[5 * got.stride + 1]}, -128);
}

struct Copy {
  std::vector<std::int8_t> codes;
  std::vector<std::int32_t> sums;
  std::vector<float> scales;
  bool operator==(const Copy&) const = default;
};

Copy copy_of(const RowCodes& view) {
  Copy copy;
  for (std::size_t r = 0; r < kRows; ++r) {
    copy.codes.insert(copy.codes.end(), view.codes + r * view.stride, view.codes + r * view.stride + 256);
  }
  copy.sums.assign(view.sums, view.sums + kRows * view.sum_stride);
  copy.sums.insert(copy.sums.end(), view.totals, view.totals + kRows);
  copy.scales.assign(view.scales, view.scales + kRows);
  copy.scales.insert(copy.scales.end(), view.zeros, view.zeros + kRows);
  return copy;
}

}  // namespace

int main() {
  ThreadPool pool(2);
  const ParallelFor two = [&](std::size_t n, const auto& task) { pool.run(n, task); };
  const std::vector<float> x = rows_of_all_kinds();
  Copy first;
  for (const std::string_view isa : available_isas()) {
    set_isa(isa);
    for (const ParallelFor& parallel_for : {ParallelFor(nullptr), two}) {
      QuantizedRows rows;
      rows.assign(x.data(), kRows, kWidth, kWidth, parallel_for);
      for (int row = 0; row < kRows; ++row) check_row(x.data() + row * kWidth, rows.view(), row);
      const Copy copy = copy_of(rows.view());
      if (first.codes.empty()) first = copy;
      CHECK(copy == first);
    }
    check_strange_rows();
  }
}
