#include "mlx/kv_cache.h"

#include <mlx/ops.h>
#include <mlx/stream.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "core/errors.h"
#include "core/message.h"
#include "mlx/fp_pool.h"
#include "mlx/owner.h"
#include "mlx/quant_pool.h"

namespace agentkv::mlx {
namespace {

std::string shown(const mx::Shape& shape) {
  std::string out = "[";
  for (const int size : shape) out += (out.size() > 1 ? ", " : "") + std::to_string(size);
  return out + "]";
}

void check_rows(const char* name, const mx::array& rows, const mx::Shape& expected) {
  require<InvalidTensor>(rows.shape() == expected, name, " is ", shown(rows.shape()), "; expected ", shown(expected));
  require<InvalidTensor>(mx::issubdtype(rows.dtype(), mx::floating), name, " is not of a floating dtype");
}

void check_on_owner(const char* verb) {
  if (!is_owner()) throw InvalidStep(error_text(verb, " was called off the thread that owns MLX"));
}

std::unique_ptr<Pool> make_pool(const CacheConfig& config) {
  const std::string name = config.kv_dtype;
  if (name == "int8") return std::make_unique<QuantPool>(config.n_kv_heads, config.head_dim, 8);
  if (name == "int4") return std::make_unique<QuantPool>(config.n_kv_heads, config.head_dim, 4);
  const auto fp = [&](mx::Dtype dtype) { return std::make_unique<FPPool>(config.n_kv_heads, config.head_dim, dtype); };
  if (name == "fp32") return fp(mx::float32);
  if (name == "fp16") return fp(mx::float16);
  if (name == "bf16") return fp(mx::bfloat16);
  throw InvalidTensor(error_text("kv_dtype '", name, "' is not one of fp32, fp16, bf16, int8, int4"));
}

// Stores rows where the plan says: cells that follow each other in one piece.
void write(Pool& pool, const StepPlan& plan, const mx::array& rows) {
  const std::vector<Cell>& cells = plan.write_cells;
  const auto breaks = [](Cell a, Cell b) { return b != a + 1; };
  if (std::adjacent_find(cells.begin(), cells.end(), breaks) == cells.end()) {
    pool.write_run(rows, cells.front());
  } else {
    pool.scatter_rows(rows, mx::array(cells.begin(), {plan.n_tokens()}, mx::int32));
  }
}

Visibility visibility_of(const StepPlan& plan) {
  if (plan.kind == StepPlan::Kind::Explicit) return Visibility::Explicit;
  return plan.n_tokens() == 1 ? Visibility::None : Visibility::Causal;
}

// Whether a window hides anything from a row that sees every position up to its own.
bool hides(const StepPlan& plan, Pos window, Pos sinks) {
  return window > 0 && plan.positions.back() - window >= sinks;
}

}  // namespace

KvCache::KvCache(const CacheConfig& config, std::shared_ptr<StepPlanner> planner)
    : n_kv_heads_(config.n_kv_heads),
      head_dim_(config.head_dim),
      capacity_(config.capacity),
      min_chunk_(config.min_chunk),
      sight_{.window = config.window, .sinks = config.sinks},
      planner_(std::move(planner)) {
  config.check();
  require<InvalidTensor>(config.shapes.empty(), "MLX keeps layers of one shape only");
  require<InvalidTensor>(planner_ != nullptr, "the cache needs a StepPlanner");
  on_owner([&] {
    for (int i = 0; i < config.n_layers; ++i) layers_.push_back({make_pool(config), make_pool(config)});
  });
}

KvCache::~KvCache() {
  try {
    on_owner([this] {
      layers_.clear();
      visible_.clear();
    });
  } catch (const Error&) {
    // In a forked child there is no thread to free them on.
    new auto(std::move(layers_));
    new auto(std::move(visible_));
  }
}

void KvCache::move_cells(const Cell* src, const Cell* dst, std::size_t n) {
  on_owner([=, this] {
    for (const Layer& layer : layers_) {
      if (layer.v->cells() > 0) check_moves(src, dst, n, layer.v->cells());
    }
    const auto count = static_cast<int>(n);
    if (count == 0) return;
    const mx::array from(src, {count}, mx::int32), to(dst, {count}, mx::int32);
    try {
      for (const Layer& layer : layers_) {
        if (layer.v->cells() == 0) continue;
        layer.k->gather_into(from, to);
        layer.v->gather_into(from, to);
      }
      settle();
    } catch (...) {
      abandon();
      throw;
    }
  });
}

std::size_t KvCache::cell_bytes() const { return layers_.size() * 2 * layers_.front().k->cell_bytes(); }

std::vector<CellArray> KvCache::cell_arrays() const {
  std::vector<CellArray> arrays;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const std::string layer = "layers." + std::to_string(i);
    layers_[i].k->describe(layer + ".k", arrays);
    layers_[i].v->describe(layer + ".v", arrays);
  }
  return arrays;
}

void KvCache::read_cells(std::span<const Cell> cells, std::span<std::byte> bytes) const {
  on_owner([&] {
    Cell end = capacity_;
    for (const Layer& layer : layers_) end = std::min(end, layer.v->cells());
    check_cells(cells, end, bytes.size());
    if (cells.empty()) return;
    const mx::array index(cells.data(), {static_cast<int>(cells.size())}, mx::int32);
    const std::size_t step = layers_.front().k->cell_bytes();
    std::byte* out = bytes.data();
    for (const Layer& layer : layers_) {
      layer.k->read_bytes(index, out, cell_bytes());
      layer.v->read_bytes(index, out + step, cell_bytes());
      out += 2 * step;
    }
  });
}

void KvCache::write_cells(std::span<const Cell> cells, std::span<const std::byte> bytes) {
  on_owner([&] {
    check_cells(cells, capacity_, bytes.size());
    if (cells.empty()) return;
    const mx::array index(cells.data(), {static_cast<int>(cells.size())}, mx::int32);
    const std::size_t step = layers_.front().k->cell_bytes();
    const std::byte* in = bytes.data();
    try {
      for (Layer& layer : layers_) {
        reserve(layer, *std::max_element(cells.begin(), cells.end()) + 1);
        layer.k->restore(index, in, cell_bytes());
        layer.v->restore(index, in + step, cell_bytes());
        in += 2 * step;
      }
      settle();
    } catch (...) {
      abandon();
      throw;
    }
  });
}

void KvCache::reserve(Layer& layer, Cell cells) {
  if (cells <= layer.v->cells()) return;  // which grows last
  layer.k->ensure(cells, min_chunk_, capacity_);
  layer.v->ensure(cells, min_chunk_, capacity_);
  count_bytes();
}

AttendSpec KvCache::update_and_fetch(int layer, std::span<const std::int64_t> position, const mx::array& k,
                                     const mx::array& v) {
  check_on_owner("update_and_fetch");
  require<InvalidTensor>(layer >= 0 && layer < n_layers(), "layer ", layer, " of a cache of ", n_layers(), " layers");
  const mx::Shape expected = {1, n_kv_heads_, static_cast<int>(position.size()), head_dim_};
  check_rows("k", k, expected);
  check_rows("v", v, expected);

  const StepPlan& plan = planner_->plan(position, layer);
  require<InvalidTensor>(plan.positions.size() == position.size(), "the plan has ", plan.n_tokens(),
                         " rows; k and v have ", position.size());
  Cell needed = plan.read_len;
  for (const Cell cell : plan.write_cells) needed = std::max(needed, cell + 1);
  Layer& pools = layers_[static_cast<std::size_t>(layer)];
  reserve(pools, needed);
  Pool &keys = *pools.k, &values = *pools.v;

  write(keys, plan, k);
  // A NaN or infinity in V would reach rows that do not see it, as 0 times it, and outlive its sequence. In K it does
  // not. Both are false here.
  const mx::array finite = mx::less(mx::abs(v), mx::array(std::numeric_limits<float>::infinity(), v.dtype()));
  write(values, plan, mx::where(finite, v, mx::array(0.0f, v.dtype())));
  return {keys.read(plan.read_len), values.read(plan.read_len), visibility_of(plan), &plan};
}

mx::array KvCache::attend(const AttendSpec& spec, const mx::array& q, float scale, Pos window, Pos sinks) {
  check_on_owner("attend");
  const StepPlan& plan = *spec.plan;
  const int heads = q.ndim() == 4 ? q.shape(1) : 0;
  require<InvalidTensor>(heads >= n_kv_heads_ && heads % n_kv_heads_ == 0, "q is ", shown(q.shape()),
                         "; its heads are not a multiple of ", n_kv_heads_);
  check_rows("q", q, {1, heads, plan.n_tokens(), head_dim_});
  require<InvalidTensor>(window >= 0 && sinks >= 0, "window and sinks are ", window, " and ", sinks,
                         "; neither may be negative");

  const Sight sight = narrower({.window = window, .sinks = sinks}, sight_);
  const Visibility visibility = hides(plan, sight.window, sight.sinks) ? Visibility::Explicit : spec.visibility;
  // Of the two ways to attend over codes, the one with the smaller intermediate: scores, or K and V multiplied out.
  const bool packed = spec.k.affine && heads * plan.n_tokens() <= 2 * n_kv_heads_ * head_dim_;
  if (visibility == Visibility::None || (visibility == Visibility::Causal && !packed)) {
    return packed ? packed_attention(q, spec.k, spec.v, scale, std::nullopt)
                  : attention(q, spec.k, spec.v, scale, visibility, std::nullopt);
  }
  const VisibleCells& visible = visible_for(plan, sight.window, sight.sinks);
  const CellsView k = spec.k.from(visible.first), v = spec.v.from(visible.first);
  if (packed) return packed_attention(q, k, v, scale, visible.mask);
  return attention(q, k, v, scale, visible.mask ? Visibility::Explicit : Visibility::None, visible.mask);
}

void KvCache::settle() {
  check_on_owner("settle");
  std::vector<mx::array> pending;
  for (const Layer& layer : layers_) {
    layer.k->collect_pending(pending);
    layer.v->collect_pending(pending);
  }
  if (pending.empty()) return;
  try {
    mx::eval(std::move(pending));
  } catch (...) {
    abandon();
    throw;
  }
}

void KvCache::abandon() {
  check_on_owner("abandon");
  for (const Layer& layer : layers_) {
    layer.k->drop_pending();
    layer.v->drop_pending();
  }
  mx::synchronize();  // what was begun before the failure may still run
}

const VisibleCells& KvCache::visible_for(const StepPlan& plan, Pos window, Pos sinks) {
  if (plan != visible_plan_) {
    visible_.clear();
    visible_plan_ = plan;
  }
  for (const KeptVisible& kept : visible_) {
    if (kept.window == window && kept.sinks == sinks) return kept.visible;
  }
  visible_.push_back({window, sinks, visible_cells(plan, window, sinks)});
  return visible_.back().visible;
}

void KvCache::count_bytes() {
  std::size_t bytes = 0;
  Cell cells = 0;
  for (const Layer& layer : layers_) {
    bytes += layer.k->bytes() + layer.v->bytes();
    cells = std::max(cells, layer.v->cells());
  }
  bytes_ = bytes;
  allocated_cells_ = cells;
}

}  // namespace agentkv::mlx
