// Layers that keep states: rows that go on from them, and states stored and brought back.
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <cstring>
#include <memory>
#include <string>

#include "core/errors.h"
#include "core/message.h"
#include "mlx/checks.h"
#include "mlx/fp_pool.h"
#include "mlx/kv_cache.h"
#include "mlx/owner.h"

namespace agentkv::mlx {
namespace {

mx::Shape state_shape(const LayerShape& shape) { return {shape.n_kv_heads, shape.v_heads, shape.k_dim, shape.v_dim}; }

// What `pool` holds in cells of earlier steps, evaluated: a reader of the pool would make the next write a copy.
mx::array held(const Pool& pool, const std::vector<Cell>& cells) {
  const int n = static_cast<int>(cells.size());
  mx::array rows = mx::take(pool.read(pool.cells()).values, mx::array(cells.begin(), {n}, mx::int32), 2);
  rows.eval();
  return rows;
}

}  // namespace

void KvCache::add_state_pools(Layer& layer) {
  const LayerShape& shape = layer.shape;
  const double floats = double{1} * shape.n_kv_heads * shape.v_heads * shape.k_dim * shape.v_dim;
  require<InvalidTensor>(floats <= 1 << 28, "a state of ", floats, " numbers; at most ", 1 << 28);
  const bool scans = shape.kept == Kept::Scan;
  const int heads = shape.n_kv_heads * shape.v_heads;
  const int key_width = scans ? shape.k_dim : linear_key_width(shape);
  const int value_width = scans ? 2 * shape.v_dim : shape.v_dim;
  layer.pools.push_back(std::make_unique<FPPool>(shape.n_kv_heads, key_width, mx::float32));
  layer.pools.push_back(std::make_unique<FPPool>(heads, value_width, mx::float32));
  layer.states = std::make_unique<States>();
}

template <typename Mixer>
mx::array KvCache::go_on(Layer& layer, int index, std::span<const std::int64_t> position, Mixer& mixer) {
  const StepPlan& plan = begin_write(layer, index, position);
  if (plan != recent_plan_) {
    recent_ = plan.recent_cells(kStateWindow);
    recent_plan_ = plan;
  }
  layer.states->drop(plan.write_cells);
  const BlockRows rows{plan, recent_};
  const std::vector<StateRun> runs = runs_of(rows, *layer.states);
  std::vector<Cell> behind;
  for (const StateRun& run : runs) behind.insert(behind.end(), run.again.begin(), run.again.end());
  std::optional<KeptRows> kept;
  if (!behind.empty()) kept = {held(layer.k(), behind), held(layer.v(), behind)};
  const auto again = [&](const mx::array& before, int i) { return mixer.again(*kept, before, i); };
  const auto step = [&](const mx::array& before, int row) { return mixer.step(before, row); };
  run_states(rows, runs, {mixer.start(), again, step}, *layer.states);
  const KeptRows fresh = mixer.kept();
  layer.k().write(fresh.keys, plan.write_cells);
  layer.v().write(fresh.values, plan.write_cells);
  return mixer.out();
}

KvCache::Layer& KvCache::stateful(int layer, bool scans) {
  check_on_owner("a layer that keeps states");
  Layer& found = layer_at(layer);
  require<InvalidTensor>(found.states != nullptr && (found.shape.kept == Kept::Scan) == scans, "layer ", layer,
                         " keeps no states of this kind");
  return found;
}

mx::array KvCache::attend_linear(int layer, std::span<const std::int64_t> position, const LinearInputs& inputs) {
  Layer& l = stateful(layer, false);
  const LayerShape& shape = l.shape;
  const int tokens = static_cast<int>(position.size()), heads = shape.n_kv_heads * shape.v_heads;
  check_rows("q", inputs.q, {1, tokens, shape.n_kv_heads, shape.k_dim});
  check_rows("k", inputs.k, {1, tokens, shape.n_kv_heads, shape.k_dim});
  check_rows("v", inputs.v, {1, tokens, heads, shape.v_dim});
  const bool by_number = shape.kept == Kept::GatedLinear;
  check_rows("decay", inputs.decay, by_number ? mx::Shape{1, tokens, heads, shape.k_dim} : mx::Shape{1, tokens, heads});
  if (inputs.beta) check_rows("beta", *inputs.beta, {1, tokens, heads});
  if (inputs.skip) check_rows("skip", *inputs.skip, {heads});

  LinearAttention attention(shape, inputs);
  return go_on(l, layer, position, attention);
}

mx::array KvCache::scan(int layer, std::span<const std::int64_t> position, const ScanInputs& inputs) {
  Layer& l = stateful(layer, true);
  const int tokens = static_cast<int>(position.size()), channels = l.shape.v_dim, states = l.shape.k_dim;
  check_rows("x", inputs.x, {1, tokens, channels});
  check_rows("decay", inputs.decay, {1, tokens, channels});
  check_rows("rates", inputs.rates, {states, channels});
  check_rows("b", inputs.b, {1, tokens, states});
  check_rows("c", inputs.c, {1, tokens, states});

  SelectiveScan scan(l.shape, inputs);
  return go_on(l, layer, position, scan);
}

std::vector<CellArray> KvCache::state_arrays() const {
  std::vector<CellArray> arrays;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const LayerShape& shape = layers_[i].shape;
    if (!shape.has_states()) continue;
    const std::int64_t heads = std::int64_t{shape.n_kv_heads} * shape.v_heads;
    arrays.push_back({"layers." + std::to_string(i), "F32", {heads, shape.k_dim, shape.v_dim}, groups_[i]});
  }
  return arrays;
}

std::size_t KvCache::state_bytes() const {
  std::size_t total = 0;
  for (const Layer& layer : layers_) total += layer.shape.state_floats() * sizeof(float);
  return total;
}

// All layers have one at a cell, or none: they are fed and discarded together.
bool KvCache::has_state(Cell cell) const {
  bool any = false;
  for (const Layer& layer : layers_) {
    if (!layer.states) continue;
    if (!layer.states->lasts(cell)) return false;
    any = true;
  }
  return any;
}

std::size_t KvCache::states() const {
  for (const Layer& layer : layers_) {
    if (layer.states) return layer.states->count();
  }
  return 0;
}

void KvCache::read_states(std::span<const Cell> cells, std::span<std::byte> bytes) const {
  check_cells(cells, allocated_cells_, bytes.size(), state_bytes());
  on_owner([&] {
    std::byte* out = bytes.data();
    for (const Cell cell : cells) {
      require<InvalidRange>(has_state(cell), "cell ", cell, " has no state");
      for (const Layer& layer : layers_) {
        if (!layer.states) continue;
        mx::array state = mx::contiguous(layer.states->at(cell));
        state.eval();
        std::memcpy(out, state.data<float>(), state.nbytes());
        out += state.nbytes();
      }
    }
  });
}

void KvCache::write_states(std::span<const Cell> cells, std::span<const std::byte> bytes) {
  check_cells(cells, allocated_cells_, bytes.size(), state_bytes());
  on_owner([&] {
    const std::byte* in = bytes.data();
    for (const Cell cell : cells) {
      for (Layer& layer : layers_) {
        if (!layer.states) continue;
        const std::size_t floats = layer.shape.state_floats();
        auto data = std::make_unique<float[]>(floats);
        std::memcpy(data.get(), in, floats * sizeof(float));
        layer.states->put(cell, mx::array(data.release(), state_shape(layer.shape), mx::float32,
                                          [](void* p) { delete[] static_cast<float*>(p); }));
        in += floats * sizeof(float);
      }
    }
    count_bytes();
  });
}

void KvCache::discard(std::span<const Cell> cells, std::uint8_t groups) {
  check_cells(cells, allocated_cells_, cells.size() * cell_bytes());
  on_owner([&] {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      if (layers_[i].states && groups_[i] < groups) layers_[i].states->drop(cells);
    }
    count_bytes();
  });
}

void KvCache::shrink(Cell cells) noexcept {
  try {
    on_owner([&] {
      for (Layer& layer : layers_) {
        if (layer.states) layer.states->drop_from(cells);
      }
      count_bytes();
    });
  } catch (const std::exception&) {  // a process that was forked has no owner, and nothing that it could free
  }
}

}  // namespace agentkv::mlx
