// Weights as blocks: the same bits on every instruction set, on any number of threads and whichever rows are beside
// one; bytes that stand for what they were made of; refusals.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "core/errors.h"
#include "core/isa.h"
#include "cpp/check.h"
#include "cpu/blocks/packing.h"
#include "cpu/blocks/quantize.h"
#include "cpu/kernels/fit_table.h"
#include "linear/routing.h"
#include "linear/weights.h"
#include "thread_pool.h"

using namespace agentkv;
using namespace agentkv::cpu;
using namespace agentkv::cpu::testing;

namespace {

constexpr BlockType kFitted[] = {BlockType::Q4_0, BlockType::Q4_1, BlockType::Q5_0, BlockType::Q5_1, BlockType::Q8_0,
                                 BlockType::Q4_K, BlockType::Q5_K, BlockType::Q6_K, BlockType::BF16};

struct Made {
  std::vector<std::byte> rows;
  QuantizationLoss loss;
};

Made quantized(const BlockShape& shape, std::span<const float> numbers, std::span<const float> importance,
               const ParallelFor& parallel_for) {
  Made made{std::vector<std::byte>(static_cast<std::size_t>(shape.outputs) * block_row_bytes(shape)), {}};
  made.loss = quantize_blocks(shape, BlockType::F32, std::as_bytes(numbers), importance, made.rows, parallel_for);
  return made;
}

std::vector<float> read_back(const BlockShape& shape, const std::vector<std::byte>& rows) {
  AlignedBytes panels(block_panel_bytes(shape));
  pack_blocks(shape, rows, panels.span());
  const BlockWeight weight(shape, panels.span());
  const auto inputs = static_cast<std::size_t>(shape.inputs);
  std::vector<float> out(static_cast<std::size_t>(shape.outputs) * inputs);
  for (int n = 0; n < shape.outputs; ++n) {
    weight.read_row(n, std::span(out).subspan(static_cast<std::size_t>(n) * inputs, inputs));
  }
  return out;
}

void check_type(BlockType type, const ParallelFor& two) {
  const BlockShape shape{37, 512, type};
  std::vector<float> numbers = random_floats(37 * 512, 5);
  for (std::size_t i = 0; i < 512; ++i) numbers[3 * 512 + i] = 0.0f;
  std::vector<float> importance(512);
  for (std::size_t i = 0; i < importance.size(); ++i) importance[i] = 0.1f + static_cast<float>(i % 7);
  const Made want = quantized(shape, numbers, importance, nullptr);
  for (const std::string_view isa : available_isas()) {
    set_isa(isa);
    const Made got = quantized(shape, numbers, importance, two);
    CHECK(got.rows == want.rows && got.loss.lost == want.loss.lost && got.loss.whole == want.loss.whole);
    // One row alone.
    const BlockShape one{1, 512, type};
    const Made alone = quantized(one, std::span(numbers).subspan(20 * 512, 512), importance, nullptr);
    CHECK(std::ranges::equal(alone.rows, std::span(want.rows).subspan(20 * alone.rows.size(), alone.rows.size())));
  }
  set_isa(available_isas().front());

  const std::vector<float> back = read_back(shape, want.rows);
  double lost = 0.0, whole = 0.0;
  for (std::size_t i = 0; i < back.size(); ++i) {
    lost += std::pow(double{back[i]} - numbers[i], 2);
    whole += std::pow(double{numbers[i]}, 2);
    if (i / 512 == 3) CHECK(back[i] == 0.0f);
  }
  CHECK(std::abs(lost - want.loss.lost) <= 1e-4 * lost && std::abs(whole - want.loss.whole) <= 1e-5 * whole);
  CHECK(std::sqrt(lost / whole) < 0.1);
}

// Numbers of 16 bits are those that they are as floats.
void check_halves(BlockType from) {
  const BlockShape shape{5, 256, BlockType::Q4_K};
  std::vector<std::uint16_t> halves(5 * 256);
  std::vector<float> floats(halves.size());
  std::minstd_rand rng(3);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    const auto sign = static_cast<std::uint16_t>(rng() % 2 << 15);
    halves[i] = static_cast<std::uint16_t>((from == BlockType::F16 ? rng() % 0x4000 : 0x3d00 + rng() % 0x200) | sign);
    floats[i] = float_of(from == BlockType::F16 ? ScaleKind::Binary16 : ScaleKind::Bfloat16, halves[i]);
  }
  Made made{std::vector<std::byte>(5 * block_row_bytes(shape)), {}};
  quantize_blocks(shape, from, std::as_bytes(std::span(halves)), {}, made.rows, nullptr);
  CHECK(made.rows == quantized(shape, floats, {}, nullptr).rows);
}

template <class F>
void check_packing() {
  std::minstd_rand rng(7);
  for (int round = 0; round < 20; ++round) {
    std::uint8_t bytes[F::kBytes], again[F::kBytes];
    for (std::uint8_t& each : bytes) each = static_cast<std::uint8_t>(rng() >> 8);
    Block block;
    F::unpack(bytes, block);
    F::pack(block, again);
    CHECK(std::ranges::equal(bytes, again));
  }
}

// Numbers of any size make finite blocks.
void test_extremes() {
  for (const BlockType type : kFitted) {
    for (const float scale : {1e-40f, 1e-9f, 1e-5f, 60000.0f, 1e30f}) {
      const BlockShape shape{3, 256, type};
      std::vector<float> numbers = random_floats(3 * 256, 11);
      for (float& each : numbers) each *= scale;
      numbers[5] = -scale;
      for (const float back : read_back(shape, quantized(shape, numbers, {}, nullptr).rows)) CHECK(std::isfinite(back));
    }
  }
}

void test_refusals() {
  const std::vector<float> numbers(2 * 256, 1.0f);
  const auto call = [&](const BlockShape& shape, std::span<const float> from, std::span<const float> importance = {}) {
    quantized(shape, from, importance, nullptr);
  };
  CHECK_THROWS(call({2, 256, BlockType::IQ4_NL}, numbers), InvalidTensor, "not quantised to iq4_nl");
  CHECK_THROWS(call({2, 256, BlockType::F16}, numbers), InvalidTensor, "not quantised to f16");
  CHECK_THROWS(call({2, 288, BlockType::Q4_K}, numbers), InvalidTensor, "do not divide");
  CHECK_THROWS(call({3, 256, BlockType::Q4_K}, numbers), InvalidTensor, "bytes for numbers of");
  CHECK_THROWS(call({2, 256, BlockType::Q4_K}, numbers, std::span(numbers).first(3)), InvalidTensor, "importance of 3");
  std::vector<std::byte> small(3);
  CHECK_THROWS(
      quantize_blocks({2, 256, BlockType::Q4_K}, BlockType::F32, std::as_bytes(std::span(numbers)), {}, small, nullptr),
      InvalidTensor, "bytes for rows of");
  for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> broken = numbers;
    broken[256 + 100] = wrong;
    CHECK_THROWS(call({2, 256, BlockType::Q6_K}, broken), InvalidTensor, "output 1 has a number that is not finite");
    CHECK_THROWS(call({2, 256, BlockType::BF16}, broken), InvalidTensor, "output 1 has a number that is not finite");
  }
}

}  // namespace

int main() {
  ThreadPool pool(2);
  const ParallelFor two = [&](std::size_t n, const std::function<void(std::size_t)>& task) { pool.run(n, task); };
  for (const BlockType type : kFitted) check_type(type, two);
  check_halves(BlockType::F16);
  check_halves(BlockType::BF16);
#define CHECK_PACKING(F) check_packing<F>();
  AGENTKV_EACH_FITTED_FORMAT(CHECK_PACKING)
#undef CHECK_PACKING
  test_extremes();
  test_refusals();
  return 0;
}
