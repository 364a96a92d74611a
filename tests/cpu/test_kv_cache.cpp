// Pools: growth, bounds, rounding, and refusals that change nothing.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "convert.h"
#include "core/errors.h"
#include "core/isa.h"
#include "cpp/check.h"
#include "cpu/kv_cache.h"
#include "fixture.h"

using namespace agentkv;
using namespace agentkv::cpu;
using namespace agentkv::cpu::testing;

namespace {

CacheConfig config(const char* dtype = "fp32") {
  CacheConfig c;
  c.n_layers = 2;
  c.n_kv_heads = 2;
  c.head_dim = 8;
  c.capacity = 100;
  c.min_chunk = 4;
  c.kv_dtype = dtype;
  return c;
}

StepPlan writes(std::vector<Cell> cells) {
  PlanMaker maker;
  maker.sequence(cells, static_cast<int>(cells.size()));
  return maker.done();
}

const float* row(const PoolView& pool, int head, Cell cell) {
  return reinterpret_cast<const float*>(pool.data + head * pool.head_stride + cell * pool.row_bytes);
}

AttendSpec update(KvCache& cache, int layer, const Tensor& k, const Tensor& v) {
  const std::vector<std::int64_t> positions(static_cast<std::size_t>(k.tokens));
  return cache.update_and_fetch(layer, positions, k.view(), v.view());
}

void test_growth() {
  auto planner = std::make_shared<FixedPlan>();
  KvCache cache(config(), planner, nullptr);
  CHECK_EQ(cache.bytes(), 0u);
  CHECK_EQ(cache.allocated_cells(), 0);
  std::mt19937 random(1);
  const Tensor k(2, 3, 8, random), v(2, 3, 8, random);
  planner->current = writes({2, 0, 3});
  update(cache, 0, k, v);
  CHECK_EQ(cache.allocated_cells(), 4);
  CHECK_EQ(cache.bytes(), std::size_t{2 * 2 * 2 * 4 * 8 * 4});
  planner->current = writes({9, 60, 20});
  const AttendSpec spec = update(cache, 0, k, v);
  CHECK_EQ(cache.allocated_cells(), 64);  // doubled: 4, 8, ... 64
  CHECK_EQ(cache.bytes(), std::size_t{2 * 2 * 2 * 64 * 8 * 4});
  planner->current = writes({9, 60, 70});
  const AttendSpec grown = update(cache, 0, k, v);
  CHECK_EQ(cache.allocated_cells(), 100);  // the capacity, not 128
  (void)spec;
  for (int h = 0; h < 2; ++h) {
    for (const auto& [cell, token] :
         std::vector<std::pair<Cell, int>>{{2, 0}, {0, 1}, {3, 2}, {60, 1}, {20, 2}, {70, 2}}) {
      CHECK(std::memcmp(row(grown.k, h, cell), k.row(h, token), 32) == 0);
      CHECK(std::memcmp(row(grown.v, h, cell), v.row(h, token), 32) == 0);
    }
  }
  const std::size_t before = cache.bytes();
  planner->current = writes({1, 2, 100});
  CHECK_THROWS(update(cache, 0, k, v), CacheFull, "101", "100");
  CHECK_EQ(cache.bytes(), before);
  CHECK(std::memcmp(row(grown.k, 0, 2), k.row(0, 0), 32) == 0);

  // Both are read before either is written; a layer without cells has nothing to move.
  const Cell src[] = {2, 0}, dst[] = {0, 2};
  cache.move_cells(src, dst, 2);
  CHECK(std::memcmp(row(grown.k, 1, 0), k.row(1, 0), 32) == 0);
  CHECK(std::memcmp(row(grown.v, 1, 2), v.row(1, 1), 32) == 0);
  const Cell outside[] = {0, 100};
  CHECK_THROWS(cache.move_cells(src, outside, 2), InvalidRange, "100");
  CHECK(std::memcmp(row(grown.k, 1, 0), k.row(1, 0), 32) == 0);
}

void test_refusals() {
  auto planner = std::make_shared<FixedPlan>();
  const auto refused = [&](auto change, const char* part) {
    CacheConfig c = config();
    change(c);
    CHECK_THROWS(KvCache(c, planner, nullptr), InvalidTensor, part);
  };
  refused([](CacheConfig& c) { c.head_dim = 12; }, "12");
  refused([](CacheConfig& c) { c.head_dim = 2056; }, "2056");
  refused([](CacheConfig& c) { c.n_kv_heads = 0; }, "n_kv_heads");
  refused([](CacheConfig& c) { c.n_layers = 0; }, "n_layers");
  refused([](CacheConfig& c) { c.capacity = 0; }, "capacity");
  refused([](CacheConfig& c) { c.min_chunk = 0; }, "min_chunk");
  for (const char* dtype : {"int3", "int4/int8", "int8/int8", "fp16/int8", "int8/", "/int4"}) {
    refused([&](CacheConfig& c) { c.kv_dtype = dtype; }, "int8/int4");
  }

  KvCache cache(config(), planner, nullptr);
  planner->current = writes({0, 1});
  const Tensor good(2, 2, 8), heads(3, 2, 8), tokens(2, 3, 8), dim(2, 2, 16);
  CHECK_THROWS(update(cache, 2, good, good), InvalidTensor, "layer 2", "2 layers");
  CHECK_THROWS(update(cache, -1, good, good), InvalidTensor, "-1");
  CHECK_THROWS(update(cache, 0, heads, good), InvalidTensor, "k is [3, 2, 8]", "[2, 2, 8]");
  CHECK_THROWS(update(cache, 0, good, tokens), InvalidTensor, "v is [2, 3, 8]");
  CHECK_THROWS(update(cache, 0, good, dim), InvalidTensor, "v is [2, 2, 16]");
  CHECK_THROWS(update(cache, 0, tokens, tokens), InvalidTensor, "2 rows", "3");
  CHECK_EQ(cache.bytes(), 0u);

  const AttendSpec spec = update(cache, 0, good, good);
  Tensor out(4, 2, 8), narrow(4, 2, 16);
  const Tensor q(4, 2, 8), odd(3, 2, 8), longer(4, 3, 8);
  CHECK_THROWS(cache.attend(spec, odd.view(), {}, {}, out.mutable_view()), InvalidTensor, "3 heads", "multiple of 2");
  CHECK_THROWS(cache.attend(spec, longer.view(), {}, {}, out.mutable_view()), InvalidTensor, "q is [4, 3, 8]");
  CHECK_THROWS(cache.attend(spec, q.view(), {}, {}, narrow.mutable_view()), InvalidTensor, "out is [4, 2, 16]");
  CHECK_THROWS(cache.attend(spec, q.view(), {}, {.window = -1}, out.mutable_view()), InvalidTensor, "-1");
  CHECK_THROWS(cache.attend({}, q.view(), {}, {}, out.mutable_view()), InvalidTensor, "update_and_fetch");
}

// Every stored value is what the scalar reference says, on every instruction set: ties, subnormals, overflow, NaN.
void test_rounding() {
  std::vector<float> values = {0.0f,
                               -0.0f,
                               65504.0f,
                               65519.9f,
                               65520.0f,
                               -1e30f,
                               0x1p-24f,
                               0x1p-25f,
                               0x1.8p-25f,
                               0x1p-14f,
                               0x1.ffcp-15f,
                               1.00048828125f,
                               1.00146484375f,
                               -1.00048828125f,
                               1.00390625f,
                               1.01171875f,
                               std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN(),
                               3.38e38f};
  std::mt19937 random(5);
  while (values.size() % 8 != 0 || values.size() < 8000) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    values.push_back(random() % 2 ? x : std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 50) - 60));
  }
  for (const std::string_view isa : available_isas()) {
    set_isa(isa);
    const int n = static_cast<int>(values.size());
    std::vector<std::uint16_t> half(values.size()), brain(values.size());
    row_kernels(KvDtype::Fp16).store_row(values.data(), reinterpret_cast<std::byte*>(half.data()), nullptr, n);
    row_kernels(KvDtype::Bf16).store_row(values.data(), reinterpret_cast<std::byte*>(brain.data()), nullptr, n);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        CHECK(std::isnan(float_from_fp16(half[i])));
        CHECK(std::isnan(float_from_bf16(brain[i])));
        continue;
      }
      CHECK_EQ(half[i], fp16_from_float(values[i]));
      CHECK_EQ(brain[i], bf16_from_float(values[i]));
    }
  }
  // The reference itself, at hand-computed points.
  CHECK_EQ(fp16_from_float(1.00048828125f), 0x3c00);  // halfway between 1 and its successor: to even, down
  CHECK_EQ(fp16_from_float(1.00146484375f), 0x3c02);  // halfway: to even, up
  CHECK_EQ(fp16_from_float(0x1p-25f), 0x0000);
  CHECK_EQ(fp16_from_float(0x1.8p-25f), 0x0001);
  CHECK_EQ(fp16_from_float(1e9f), 0x7bff);
  CHECK_EQ(bf16_from_float(1.00390625f), 0x3f80);
  CHECK_EQ(bf16_from_float(1.01171875f), 0x3f82);
}

}  // namespace

int main() {
  test_growth();
  test_refusals();
  test_rounding();
  return 0;
}
