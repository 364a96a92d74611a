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
#include "mlx/checks.h"
#include "mlx/fp_pool.h"
#include "mlx/owner.h"
#include "mlx/quant_pool.h"

namespace agentkv::mlx {
namespace {

struct Dtypes {
  std::string keys, values;
};

Dtypes dtypes_of(const std::string& kv_dtype) {
  if (kv_dtype == "int8/int4") return {"int8", "int4"};
  return {kv_dtype, kv_dtype};
}

std::unique_ptr<Pool> make_pool(const std::string& kv_dtype, int n_kv_heads, int dim) {
  if (kv_dtype == "int8") return std::make_unique<QuantPool>(n_kv_heads, dim, 8);
  if (kv_dtype == "int4") return std::make_unique<QuantPool>(n_kv_heads, dim, 4);
  const auto fp = [&](mx::Dtype dtype) { return std::make_unique<FPPool>(n_kv_heads, dim, dtype); };
  if (kv_dtype == "fp32") return fp(mx::float32);
  if (kv_dtype == "fp16") return fp(mx::float16);
  if (kv_dtype == "bf16") return fp(mx::bfloat16);
  throw InvalidTensor(error_text("kv_dtype '", kv_dtype, "' is not one of fp32, fp16, bf16, int8, int4, int8/int4"));
}

Visibility visibility_of(const StepPlan& plan) {
  if (plan.kind == StepPlan::Kind::Explicit) return Visibility::Explicit;
  return plan.n_tokens() == 1 ? Visibility::None : Visibility::Causal;
}

// Whether anything is hidden from a row that sees every position up to its own.
bool hides(const StepPlan& plan, const Sight& sight) {
  const Pos last = plan.positions.back();
  return (sight.window > 0 && last - sight.window >= sight.sinks) || (sight.chunk > 0 && last >= sight.chunk);
}

// A NaN or infinity in V would reach rows that do not see it, as 0 times it, and outlive its sequence. In K it does
// not.
mx::array without_infinities(const mx::array& v) {
  const mx::array finite = mx::less(mx::abs(v), mx::array(std::numeric_limits<float>::infinity(), v.dtype()));
  return mx::where(finite, v, mx::array(0.0f, v.dtype()));
}

}  // namespace

KvCache::KvCache(const CacheConfig& config, std::shared_ptr<StepPlanner> planner)
    : capacity_(config.capacity),
      min_chunk_(config.min_chunk),
      sight_{.window = config.window, .sinks = config.sinks},
      planner_(std::move(planner)) {
  config.check();
  require<InvalidTensor>(planner_ != nullptr, "the cache needs a StepPlanner");
  const auto has_states = [](const LayerShape& shape) { return shape.has_states(); };
  if (std::ranges::any_of(config.shapes, has_states)) groups_ = layer_groups(config.windows);
  groups_.resize(static_cast<std::size_t>(config.n_layers), kNoGroup);
  const Dtypes dtypes = dtypes_of(config.kv_dtype);
  const bool codes = dtypes.keys == "int8" || dtypes.keys == "int4";
  on_owner([&] {
    for (int i = 0; i < config.n_layers; ++i) {
      const LayerShape shape = config.shape(i);
      require<InvalidTensor>(shape.kept != Kept::Latent || !codes,
                             "layers whose values are a part of their keys are kept", " as fp32, fp16 or bf16, not ",
                             config.kv_dtype);
      Layer& layer = layers_.emplace_back(Layer{shape, {}, {}});
      if (shape.has_states()) {
        add_state_pools(layer);
        continue;
      }
      layer.pools.push_back(make_pool(shape.in_float32() ? "fp32" : dtypes.keys, shape.n_kv_heads, shape.k_dim));
      if (!shape.has_values()) continue;
      layer.pools.push_back(make_pool(dtypes.values, shape.n_kv_heads, shape.v_dim));
    }
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

void KvCache::reserve(Layer& layer, Cell cells) {
  if (cells <= layer.v().cells()) return;  // which grows last
  for (const auto& pool : layer.pools) pool->ensure(cells, min_chunk_, capacity_);
  count_bytes();
}

KvCache::Layer& KvCache::layer_at(int layer) {
  require<InvalidTensor>(layer >= 0 && layer < n_layers(), "layer ", layer, " of a cache of ", n_layers(), " layers");
  return layers_[static_cast<std::size_t>(layer)];
}

AttendSpec KvCache::update_and_fetch(int layer, std::span<const std::int64_t> position, const mx::array& k,
                                     const mx::array& v) {
  check_on_owner("update_and_fetch");
  Layer& held = layer_at(layer);
  const LayerShape& shape = held.shape;
  const auto tokens = static_cast<int>(position.size());
  check_rows("k", k, {1, shape.n_kv_heads, tokens, shape.k_dim});
  if (shape.has_values()) check_rows("v", v, {1, shape.n_kv_heads, tokens, shape.v_dim});

  const StepPlan& plan = begin_write(held, layer, position);
  if (shape.has_values()) held.k().write(k, plan.write_cells);
  held.v().write(without_infinities(shape.has_values() ? v : k), plan.write_cells);
  return spec_of(layer, plan);
}

const StepPlan& KvCache::begin_write(Layer& layer, int index, std::span<const std::int64_t> position) {
  const StepPlan& plan = planner_->plan(position, index);
  require<InvalidTensor>(plan.positions.size() == position.size(), "the plan has ", plan.n_tokens(),
                         " rows; k and v have ", position.size());
  Cell needed = plan.read_len;
  for (const Cell cell : plan.write_cells) needed = std::max(needed, cell + 1);
  reserve(layer, needed);
  return plan;
}

AttendSpec KvCache::fetch(int layer, std::span<const std::int64_t> position) {
  check_on_owner("fetch");
  Layer& held = layer_at(layer);
  const StepPlan& plan = planner_->plan(position, layer);
  reserve(held, plan.read_len);
  return spec_of(layer, plan);
}

AttendSpec KvCache::spec_of(int layer, const StepPlan& plan) const {
  const Layer& held = layers_[static_cast<std::size_t>(layer)];
  const CellsView k = held.k().read(plan.read_len);
  const CellsView v = !held.shape.has_values() ? k.first_numbers(held.shape.v_dim) : held.v().read(plan.read_len);
  return {layer, k, v, visibility_of(plan), &plan};
}

void KvCache::check_scoring(const AttendSpec& spec, const mx::array& q, const Scoring& scoring,
                            const Sight& sight) const {
  const LayerShape& shape = layers_[static_cast<std::size_t>(spec.layer)].shape;
  const int heads = q.ndim() == 4 ? q.shape(1) : 0;
  require<InvalidTensor>(heads >= shape.n_kv_heads && heads % shape.n_kv_heads == 0, "q is ", shown(q.shape()),
                         "; its heads are not a multiple of ", shape.n_kv_heads);
  check_rows("q", q, {1, heads, spec.plan->n_tokens(), shape.k_dim});
  require<InvalidTensor>(sight.window >= 0 && sight.sinks >= 0 && sight.chunk >= 0, "window, sinks and chunk are ",
                         sight.window, ", ", sight.sinks, " and ", sight.chunk, "; none may be negative");
  require<InvalidTensor>(scoring.cap >= 0, "a cap of ", scoring.cap, " on scores; it may not be negative");
  if (scoring.sink_scores) check_rows("sink_scores", *scoring.sink_scores, {heads});
  if (scoring.slopes) check_rows("slopes", *scoring.slopes, {heads});
}

mx::array KvCache::attend(const AttendSpec& spec, const mx::array& q, const Scoring& scoring, const Sight& sight) {
  check_on_owner("attend");
  check_scoring(spec, q, scoring, sight);
  const StepPlan& plan = *spec.plan;
  const Sight narrow = narrower(sight, sight_);
  const Visibility visibility = hides(plan, narrow) ? Visibility::Explicit : spec.visibility;
  // Of the two ways to attend over codes, the one with the smaller intermediate: scores, or K and V multiplied out.
  const bool packed = spec.k.affine && q.shape(1) * plan.n_tokens() <= 2 * spec.k.values.shape(1) * q.shape(3);
  const bool fused = scoring.is_fused() && !packed;
  if (fused && visibility != Visibility::Explicit)
    return attention(q, spec.k, spec.v, scoring, visibility, std::nullopt);

  const VisibleCells all;
  const VisibleCells& visible = visibility == Visibility::None ? all : visible_for(plan, narrow);
  const CellsView k = spec.k.from(visible.first), v = spec.v.from(visible.first);
  if (fused) {
    return attention(q, k, v, scoring, visible.mask ? Visibility::Explicit : Visibility::None, visible.mask);
  }
  const auto apart = scoring.slopes ? std::optional(distances(plan, visible.first)) : std::nullopt;
  if (packed) return composed_attention(q, k, v, scoring, visible.mask, apart);
  return composed_attention(q, k.unpacked(mx::float32), v.unpacked(mx::float32), scoring, visible.mask, apart);
}

mx::array KvCache::convolve(int layer, std::span<const std::int64_t> position, const mx::array& x,
                            const Convolution& convolution) {
  const LayerShape& shape = layer_at(layer).shape;
  require<InvalidTensor>(shape.kept == Kept::Inputs, "a convolution over layer ", layer,
                         ", which keeps no inputs of convolutions");
  const int tokens = static_cast<int>(position.size()), channels = shape.n_kv_heads * shape.k_dim;
  check_rows("x", x, {1, tokens, channels});
  const int width = convolution.weight.ndim() == 3 ? convolution.weight.shape(2) : 1;
  check_rows("weight", convolution.weight, {channels, 1, width});
  if (convolution.bias) check_rows("bias", *convolution.bias, {channels});
  const mx::array heads = mx::transpose(mx::reshape(x, {1, tokens, shape.n_kv_heads, shape.k_dim}), {0, 2, 1, 3});
  const AttendSpec spec = update_and_fetch(layer, position, heads, heads);
  return mx::astype(mlx::convolve(*spec.plan, spec.k, convolution), x.dtype());
}

void KvCache::settle() {
  check_on_owner("settle");
  std::vector<mx::array> pending;
  for (const Layer& layer : layers_) {
    for (const auto& pool : layer.pools) pool->collect_pending(pending);
    if (layer.states) layer.states->collect_pending(pending);
  }
  if (pending.empty()) return;
  try {
    mx::eval(std::move(pending));
    count_bytes();
  } catch (...) {
    abandon();
    throw;
  }
}

void KvCache::abandon() {
  check_on_owner("abandon");
  for (const Layer& layer : layers_) {
    for (const auto& pool : layer.pools) pool->drop_pending();
    if (layer.states) layer.states->drop_pending();
  }
  mx::synchronize();  // what was begun before the failure may still run
}

const VisibleCells& KvCache::visible_for(const StepPlan& plan, const Sight& sight) {
  if (plan != visible_plan_) {
    visible_.clear();
    visible_plan_ = plan;
  }
  for (const KeptVisible& kept : visible_) {
    if (kept.sight == sight) return kept.visible;
  }
  visible_.push_back({sight, visible_cells(plan, sight)});
  return visible_.back().visible;
}

void KvCache::count_bytes() {
  std::size_t bytes = 0;
  Cell cells = 0;
  for (const Layer& layer : layers_) {
    for (const auto& pool : layer.pools) bytes += pool->bytes();
    if (layer.states) bytes += layer.states->count() * layer.shape.state_floats() * sizeof(float);
    cells = std::max(cells, layer.v().cells());
  }
  bytes_ = bytes;
  allocated_cells_ = cells;
}

}  // namespace agentkv::mlx
