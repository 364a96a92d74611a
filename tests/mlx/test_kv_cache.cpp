// The byte layer over real bookkeeping: attention against doubles, refusals, growth, builders.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/cache_builders.h"
#include "core/errors.h"
#include "mlx/builders.h"
#include "mlx/owner.h"
#include "rig.h"

using namespace agentkv;
using namespace agentkv::mlx;
using namespace agentkv::mlx::testing;

namespace {

void test_attention() {
  for (const char* dtype : kDtypes) {
    Rig rig(dtype);
    float worst = rig.step(std::vector<SeqId>(37, 0));  // causal; codes are multiplied out
    worst = std::max(worst, rig.step({0}));             // one row: no mask; codes are read packed
    worst = std::max(worst, rig.step({0, 0, 0}));       // causal, packed
    worst = std::max(worst, rig.step({0, 0}, 50));      // a window that hides nothing
    worst = std::max(worst, rig.step({0, 0}, 8));       // and some that do
    worst = std::max(worst, rig.step({0}, 8, 3));
    for (SeqId child = 1; child < 4; ++child) rig.cells->seq_cp(0, child);
    worst = std::max(worst, rig.step({0, 1, 2, 3}));  // branches: what the plan's mask says
    rig.cells->seq_rm(1, 20);
    rig.cells->seq_rm(2);
    worst = std::max(worst, rig.step({3, 1, 1, 5, 0}));  // into holes: cells apart from each other
    worst = std::max(worst, rig.step({3, 1, 1, 5, 0}, 9, 2));
    worst = std::max(worst, rig.step(std::vector<SeqId>(30, 5)));  // an explicit mask over many rows
    CHECK(worst < 1e-5f);
  }
}

void test_narrow_activations() {
  for (const char* dtype : kDtypes) {
    Rig rig(dtype);
    CHECK(rig.step(std::vector<SeqId>(20, 0), 0, 0, mx::float16) < 5e-3f);
    CHECK(rig.step({0}, 0, 0, mx::float16) < 5e-3f);
    CHECK(rig.step({0, 1}, 0, 0, mx::bfloat16) < 4e-2f);
  }
}

void test_refusals() {
  const auto refused = [&](auto change, const char* part) {
    CacheConfig c = config("fp32");
    change(c);
    CHECK_THROWS(KvCache(c, std::make_shared<Cells>(8)), InvalidTensor, part);
  };
  refused([](CacheConfig& c) { c.n_layers = 0; }, "n_layers");
  refused([](CacheConfig& c) { c.n_kv_heads = 0; }, "n_kv_heads");
  refused([](CacheConfig& c) { c.head_dim = 0; }, "head_dim");
  refused([](CacheConfig& c) { c.capacity = 0; }, "capacity");
  refused([](CacheConfig& c) { c.min_chunk = 0; }, "min_chunk");
  refused([](CacheConfig& c) { c.kv_dtype = "int3"; }, "int3");
  refused([](CacheConfig& c) { c.head_dim = 40, c.kv_dtype = "int4"; }, "40");

  Rig rig("fp32");
  const mx::array good = heads_of(kKvHeads, 2, 1);
  const std::vector<std::int64_t> position = {0, 1};
  const auto update = [&](int layer, const mx::array& k, const mx::array& v) {
    return rig.cache.update_and_fetch(layer, position, k, v);
  };
  CHECK_THROWS(update(0, good, good), InvalidStep);
  rig.begin({0, 0});
  CHECK_THROWS(update(2, good, good), InvalidTensor, "layer 2", "2 layers");
  CHECK_THROWS(update(-1, good, good), InvalidTensor, "-1");
  CHECK_THROWS(update(0, heads_of(3, 2, 1), good), InvalidTensor, "k is [1, 3, 2, 32]", "[1, 2, 2, 32]");
  CHECK_THROWS(update(0, good, heads_of(kKvHeads, 3, 1)), InvalidTensor, "v is [1, 2, 3, 32]");
  CHECK_THROWS(update(0, mx::zeros({2, 2, 32}), good), InvalidTensor, "k is [2, 2, 32]");
  CHECK_THROWS(update(0, mx::zeros({1, 1, 2, 32}), good), InvalidTensor, "k is [1, 1, 2, 32]");  // would broadcast
  CHECK_THROWS(update(0, good, mx::astype(good, mx::int32)), InvalidTensor, "v", "floating");
  CHECK_EQ(rig.cache.bytes(), 0u);
  {
    const AttendSpec spec = update(0, good, good);
    const auto attend = [&](const mx::array& q, Pos window) { return rig.cache.attend(spec, q, kScale, window); };
    CHECK_THROWS(attend(heads_of(3, 2, 1), 0), InvalidTensor, "[1, 3, 2, 32]", "multiple of 2");
    CHECK_THROWS(attend(heads_of(4, 3, 1), 0), InvalidTensor, "q is [1, 4, 3, 32]");
    CHECK_THROWS(attend(heads_of(4, 2, 1, 16), 0), InvalidTensor, "q is [1, 4, 2, 16]");
    CHECK_THROWS(attend(heads_of(4, 2, 1), -1), InvalidTensor, "-1");
  }
  rig.cache.settle();
  rig.cells->abort_step();
  CHECK(rig.step({0, 0, 0}) < 1e-5f);
}

// While the pools of all layers double, no more than one of them is held beside its new self.
void test_growth_peak() {
  Rig rig("fp32", 8192);
  rig.write(4000);
  CHECK_EQ(rig.cache.allocated_cells(), 4096);
  const std::size_t before = rig.cache.bytes(), pool = before / (2 * kLayers);
  const std::size_t peak = peak_of([&] { rig.write(97); });
  CHECK_EQ(rig.cache.bytes(), 2 * before);
  // Grown: the new pools, less the old ones that they replaced, and the one that goes last.
  CHECK(peak < before + pool + 256 * 1024);
}

void test_off_the_owner(KvCache& cache) {
  CHECK_THROWS(cache.settle(), InvalidStep, "settle", "thread");
  const Cell cells[] = {0};
  cache.move_cells(cells, cells, 1);
  CHECK_EQ(cache.bytes(), 0u);
}

void test_builders() {
  register_builders();
  register_builders();
  auto& registry = CacheBuilderRegistry::instance();
  const auto built = registry.build("AgentKVMLX", config("int8"));
  CHECK_EQ(built.layer->backend_id(), "AgentKVMLX");
  CHECK_EQ(built.cells->capacity(), 256);
}

}  // namespace

int main() {
  on_owner([] {
    test_attention();
    test_narrow_activations();
    test_refusals();
    test_growth_peak();
  });
  KvCache cache(config("fp32"), std::make_shared<Cells>(8));
  test_off_the_owner(cache);
  test_builders();
}
