// The byte layer over real bookkeeping: attention against doubles, refusals, and failures in the middle of a forward.
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <vector>

#include "arrays.h"
#include "core/builders.h"
#include "core/seq_cells.h"
#include "cpp/check.h"
#include "mlx/builders.h"
#include "mlx/kv_cache.h"
#include "mlx/owner.h"

using namespace agentkv;
using namespace agentkv::mlx;
using namespace agentkv::mlx::testing;

namespace {

constexpr int kLayers = 2, kKvHeads = 2, kHeads = 6, kDim = 32;
constexpr float kScale = 0.2f;
const char* const kDtypes[] = {"fp32", "fp16", "bf16", "int8", "int4"};

CacheConfig config(const char* dtype, Cell capacity = 256) {
  CacheConfig c;
  c.n_layers = kLayers;
  c.n_kv_heads = kKvHeads;
  c.head_dim = kDim;
  c.capacity = capacity;
  c.min_chunk = 16;
  c.kv_dtype = dtype;
  return c;
}

// [1, heads, tokens, dim] as a model makes it: token by token, with the heads transposed to the front.
mx::array heads_of(int heads, int tokens, unsigned seed, int dim = kDim) {
  return mx::transpose(random_array({1, tokens, heads, dim}, seed), {0, 2, 1, 3});
}

// Attention of q over what a view holds, in doubles. mask: [T, len].
mx::array reference(const AttendSpec& spec, const mx::array& q, const std::vector<std::uint8_t>& mask) {
  mx::array k = mx::contiguous(spec.k.dense(mx::float32)), v = mx::contiguous(spec.v.dense(mx::float32));
  mx::array queries = mx::contiguous(mx::astype(q, mx::float32));
  mx::eval(k, v, queries);
  const int tokens = q.shape(2), len = k.shape(2), group = q.shape(1) / kKvHeads;
  const auto row = [](const mx::array& a, int head, int i) {
    return a.data<float>() + (static_cast<std::size_t>(head) * a.shape(2) + i) * kDim;
  };
  std::vector<float> out;
  for (int head = 0; head < q.shape(1); ++head) {
    for (int t = 0; t < tokens; ++t) {
      std::vector<double> weights(len), sum(kDim);
      double total = 0;
      for (int j = 0; j < len; ++j) {
        if (!mask[static_cast<std::size_t>(t) * len + j]) continue;
        double score = 0;
        for (int d = 0; d < kDim; ++d) score += double{row(queries, head, t)[d]} * row(k, head / group, j)[d];
        total += weights[j] = std::exp(score * kScale);
        for (int d = 0; d < kDim; ++d) sum[d] += weights[j] * row(v, head / group, j)[d];
      }
      for (int d = 0; d < kDim; ++d) out.push_back(static_cast<float>(sum[d] / total));
    }
  }
  return mx::array(out.begin(), q.shape(), mx::float32);
}

// Sequences over one cache, fed with random rows.
struct Rig {
  std::shared_ptr<SeqCells> cells;
  KvCache cache;
  unsigned seed = 1;
  std::vector<std::int64_t> position;

  explicit Rig(const char* dtype, Cell capacity = 256)
      : cells(std::make_shared<SeqCells>(capacity)), cache(config(dtype, capacity), cells) {}

  void begin(const std::vector<SeqId>& rows) {
    cells->begin_step(rows);
    const auto positions = cells->step_positions();
    position.assign(positions.begin(), positions.end());
  }
  int tokens() const { return static_cast<int>(position.size()); }
  mx::array kv() { return heads_of(kKvHeads, tokens(), ++seed); }

  // One step of every layer; returns the largest error of its attention.
  float step(const std::vector<SeqId>& rows, Pos window = 0, Pos sinks = 0, mx::Dtype dtype = mx::float32) {
    begin(rows);
    std::vector<mx::array> outs, wants;
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto spec = cache.update_and_fetch(layer, position, mx::astype(kv(), dtype), mx::astype(kv(), dtype));
      const mx::array q = mx::astype(heads_of(kHeads, tokens(), ++seed), dtype);
      outs.push_back(cache.attend(spec, q, kScale, window, sinks));
      CHECK(outs.back().shape() == q.shape() && outs.back().dtype() == dtype);
      wants.push_back(reference(spec, q, spec.plan->mask(window, sinks)));
    }
    mx::eval(outs);
    cache.settle();
    cells->commit_step();
    float worst = 0;
    for (int layer = 0; layer < kLayers; ++layer)
      worst = std::max(worst, largest_difference(outs[layer], wants[layer]));
    return worst;
  }

  // One step of every layer that attends to nothing.
  void write(int n) {
    begin(std::vector<SeqId>(static_cast<std::size_t>(n), 0));
    for (int layer = 0; layer < kLayers; ++layer) cache.update_and_fetch(layer, position, kv(), kv());
    cache.settle();
    cells->commit_step();
  }

  // What layer holds in its first n cells, without writing anything that a later step sees.
  std::vector<mx::array> held(int layer, int n) {
    begin({9});
    const auto spec = cache.update_and_fetch(layer, position, kv(), kv());
    std::vector<mx::array> out = {mx::contiguous(cells_of(spec.k.dense(mx::float32), 0, n)),
                                  mx::contiguous(cells_of(spec.v.dense(mx::float32), 0, n))};
    mx::eval(out);
    cache.settle();
    cells->abort_step();
    return out;
  }
};

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
    CHECK_THROWS(KvCache(c, std::make_shared<SeqCells>(8)), InvalidTensor, part);
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

// A forward that fails, in whatever layer and however, leaves every row that was there and a cache that works.
void test_failures() {
  for (const char* dtype : kDtypes) {
    for (const int broken : {0, 1}) {
      Rig rig(dtype);
      rig.step(std::vector<SeqId>(20, 0));
      const std::vector<std::vector<mx::array>> before = {rig.held(0, 20), rig.held(1, 20)};
      const auto check_held = [&](const auto& want) {
        for (int layer = 0; layer < kLayers; ++layer) {
          const auto have = rig.held(layer, 20);
          CHECK(same(have[0], want[layer][0]) && same(have[1], want[layer][1]));
        }
      };

      // One that cannot be evaluated, which shows when its output is wanted, or when the cache is settled.
      for (const bool output_first : {true, false}) {
        rig.begin({0, 1, 0});
        std::vector<mx::array> outs;
        for (int layer = 0; layer < kLayers; ++layer) {
          const mx::array k = rig.kv(), v = rig.kv();
          const auto spec = rig.cache.update_and_fetch(layer, rig.position, k, layer == broken ? failing(v) : v);
          outs.push_back(rig.cache.attend(spec, heads_of(kHeads, 3, 5), kScale, 0));
        }
        if (output_first) {
          CHECK_THROWS(mx::eval(outs), std::runtime_error, "no memory left");
          rig.cache.abandon();
        } else {
          CHECK_THROWS(rig.cache.settle(), std::runtime_error, "no memory left");
        }
        outs.clear();
        rig.cache.settle();
        rig.cells->abort_step();
        check_held(before);
      }
      CHECK(rig.step({0, 1, 1}) < 1e-5f);

      // One that stops between two layers, or before anything was evaluated.
      rig.begin({0, 0});
      rig.cache.update_and_fetch(0, rig.position, rig.kv(), rig.kv());
      rig.cache.abandon();
      rig.cells->abort_step();
      check_held(before);
      CHECK(rig.step({1, 0}) < 1e-5f);
    }
  }
}

// What one branch broke stays its own, also after its cells went back to the pool.
void test_nan_stays_with_its_branch() {
  for (const char* dtype : kDtypes) {
    Rig rig(dtype);
    rig.step({0, 0, 0, 0});
    rig.cells->seq_cp(0, 1);
    rig.begin({1, 0});
    const mx::array sick = mx::array({NAN, 0.0f}, {1, 1, 2, 1});
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto spec =
          rig.cache.update_and_fetch(layer, rig.position, mx::add(rig.kv(), sick), mx::add(rig.kv(), sick));
      const mx::array out = rig.cache.attend(spec, heads_of(kHeads, 2, 3), kScale, 0);
      const mx::array broken = mx::isnan(out);
      CHECK(mx::all(cells_of(broken, 0, 1)).item<bool>());
      CHECK(!mx::any(cells_of(broken, 1, 1)).item<bool>());
    }
    rig.cache.settle();
    rig.cells->commit_step();
    rig.cells->seq_rm(1);
    rig.cells->seq_cp(0, 2);
    CHECK(rig.step({0, 2}) < 1e-5f);
  }
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
  const auto tree = registry.build<TreeSeqCache>("AgentKVMLX", config("int8"));
  CHECK_EQ(tree.layer->backend_id(), "AgentKVMLX");
  CHECK_EQ(tree.cache->capacity(), 256);
  CHECK_EQ(registry.build<SeqCache>("AgentKVMLX", config("fp16")).cache->capacity(), 256);
  CHECK_EQ(registry.build<ContiguousCache>("AgentKVMLX", config("bf16")).cache->capacity(), 256);
}

}  // namespace

int main() {
  on_owner([] {
    test_attention();
    test_narrow_activations();
    test_refusals();
    test_failures();
    test_nan_stays_with_its_branch();
    test_growth_peak();
  });
  KvCache cache(config("fp32"), std::make_shared<SeqCells>(8));
  test_off_the_owner(cache);
  test_builders();
}
