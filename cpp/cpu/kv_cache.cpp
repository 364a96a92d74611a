#include "cpu/kv_cache.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "core/message.h"

namespace agentkv::cpu {

namespace {

template <class View>
void check_shape(const char* name, const View& rows, std::int32_t heads, std::int64_t tokens, std::int32_t dim) {
  require<InvalidTensor>(rows.heads == heads && rows.tokens == tokens && rows.dim == dim, name, " is [", rows.heads,
                         ", ", rows.tokens, ", ", rows.dim, "]; expected [", heads, ", ", tokens, ", ", dim, "]");
}

}  // namespace

KvCache::KvCache(const CacheConfig& config, std::shared_ptr<StepPlanner> planner, ParallelFor parallel_for)
    : dtypes_(parse_kv_dtype(config.kv_dtype)),
      capacity_(config.capacity),
      min_chunk_(config.min_chunk),
      sight_{.window = config.window, .sinks = config.sinks},
      planner_(std::move(planner)),
      parallel_for_(std::move(parallel_for)) {
  config.check();
  std::vector<LayerShape> shapes;
  for (int i = 0; i < config.n_layers; ++i) shapes.push_back(config.shape(i));
  for (const LayerShape& shape : shapes) {
    if (shape.has_states()) {
      const double floats = double{1} * shape.n_kv_heads * shape.v_heads * shape.k_dim * shape.v_dim;
      require<InvalidTensor>(floats <= 1 << 28, "a state of ", floats, " numbers; at most ", 1 << 28);
      continue;
    }
    for (const int dim : {shape.k_dim, shape.v_dim}) {
      require<InvalidTensor>(dim <= kMaxHeadDim && dim % 8 == 0, "head_dim is ", dim, "; a multiple of 8 up to ",
                             kMaxHeadDim);
    }
    require<InvalidTensor>(shape.kept != Kept::Latent || !has_scales(dtypes_.keys),
                           "layers whose values are a part of their keys", " are kept as fp32, fp16 or bf16, not ",
                           config.kv_dtype);
  }
  require<InvalidTensor>(planner_ != nullptr, "the cache needs a StepPlanner");
  if (!parallel_for_) {
    parallel_for_ = [](std::size_t n, const std::function<void(std::size_t)>& task) {
      for (std::size_t i = 0; i < n; ++i) task(i);
    };
  }
  layers_ = make_layers(shapes, dtypes_);
  groups_ = layer_groups(config.windows);
  groups_.resize(layers_.size(), kNoGroup);
}

std::vector<KvCache::Layer> KvCache::make_layers(std::span<const LayerShape> shapes, KvDtypes dtypes) const {
  std::vector<Layer> layers;
  for (const LayerShape& shape : shapes) {
    Layer& layer = layers.emplace_back(Layer{shape, {}, {}});
    if (shape.has_states()) {
      const bool scan = shape.kept == Kept::Scan;
      const auto add = [&](int heads, int floats) {
        layer.pools.emplace_back(heads, (floats + 7) / 8 * 8, KvDtype::Fp32, capacity_, min_chunk_);
      };
      add(shape.n_kv_heads, scan ? shape.k_dim : linear_key_floats(shape));
      add(scan ? 1 : shape.n_kv_heads * shape.v_heads, scan ? 2 * shape.v_dim : shape.v_dim);
      layer.states = std::make_unique<States>(shape.state_floats(), capacity_);
      continue;
    }
    const KvDtype keys = shape.in_float32() ? KvDtype::Fp32 : dtypes.keys;
    layer.pools.emplace_back(shape.n_kv_heads, shape.k_dim, keys, capacity_, min_chunk_);
    if (!shape.has_values()) continue;
    layer.pools.emplace_back(shape.n_kv_heads, shape.v_dim, dtypes.values, capacity_, min_chunk_);
  }
  return layers;
}

Cell KvCache::Layer::cells() const { return std::min(k().cells(), v().cells()); }

bool KvCache::only_keys_and_values() const {
  return std::none_of(layers_.begin(), layers_.end(),
                      [](const Layer& layer) { return layer.shape.kept != Kept::KeysAndValues; });
}

std::size_t KvCache::bytes() const {
  std::size_t total = 0;
  for (const auto* layers : {&layers_, &codes_}) {
    for (const Layer& layer : *layers) {
      for (const Pool& pool : layer.pools) total += pool.bytes();
      if (layer.states) total += layer.states->bytes();
    }
  }
  return total;
}

void KvCache::shrink(Cell cells) noexcept {
  for (auto* layers : {&layers_, &codes_}) {
    for (Layer& layer : *layers) {
      for (Pool& pool : layer.pools) pool.shrink(cells);
      for (Cell cell = cells; layer.states && cell < capacity_; ++cell) layer.states->drop(cell);
    }
  }
  count_cells();
}

void KvCache::grow(Cell cells) {
  if (cells <= allocated_) return;
  try {
    for (Layer& layer : layers_) {
      for (Pool& pool : layer.pools) pool.reserve(cells);
    }
  } catch (...) {
    shrink(allocated_);
    throw;
  }
  count_cells();
}

void KvCache::count_cells() {
  allocated_ = capacity_;
  for (const Layer& layer : layers_) allocated_ = std::min(allocated_, layer.cells());
}

AttendSpec KvCache::update_and_fetch(int layer, std::span<const std::int64_t> position, HeadsView k, HeadsView v) {
  require<InvalidTensor>(layer >= 0 && layer < n_layers(), "layer ", layer, " of a cache of ", n_layers(), " layers");
  const auto tokens = static_cast<std::int64_t>(position.size());
  Layer& l = layers_[static_cast<std::size_t>(layer)];
  check_shape("k", k, l.shape.n_kv_heads, tokens, l.shape.k_dim);
  if (l.shape.has_values()) check_shape("v", v, l.shape.n_kv_heads, tokens, l.shape.v_dim);

  const StepPlan& plan = begin_write(l, layer, position);
  // Few rows are not worth waking threads for.
  constexpr std::int64_t tokens_per_task = 64;
  const auto chunks = static_cast<std::size_t>((tokens + tokens_per_task - 1) / tokens_per_task);
  const auto store = [&](std::size_t chunk) {
    const auto begin = static_cast<std::int64_t>(chunk) * tokens_per_task;
    for (std::int64_t t = begin; t < std::min(tokens, begin + tokens_per_task); ++t) {
      const Cell cell = plan.write_cells[static_cast<std::size_t>(t)];
      l.k().write(k, static_cast<std::int32_t>(t), cell);
      if (l.shape.has_values()) l.v().write(v, static_cast<std::int32_t>(t), cell);
    }
  };
  if (chunks == 1) {
    store(0);
  } else {
    parallel_for_(chunks, store);
  }
  return spec_of(layer, plan);
}

const StepPlan& KvCache::begin_write(Layer& layer, int index, std::span<const std::int64_t> position) {
  const StepPlan& plan = planner_->plan(position, index);
  require<InvalidTensor>(plan.n_tokens() == std::ssize(position), "the plan has ", plan.n_tokens(),
                         " rows; k and v have ", position.size());
  Cell needed = plan.read_len;
  for (Cell cell : plan.write_cells) needed = std::max(needed, cell + 1);
  grow(needed);
  set_quantized(plan.write_cells, false);
  set_whole(plan.write_cells);
  for (Pool& pool : layer.pools) pool.will_write(plan.write_cells);
  if (layer.states) std::ranges::for_each(plan.write_cells, [&](Cell cell) { layer.states->drop(cell); });
  return plan;
}

BlockRows KvCache::begin_blocks(Layer& layer, int index, std::span<const std::int64_t> position) {
  const StepPlan& plan = begin_write(layer, index, position);
  if (recent_.empty() || !same_visibility(plan, recent_plan_)) {
    recent_ = plan.recent_cells(kStateWindow);
    recent_plan_ = plan;
  }
  return {plan, recent_};
}

KvCache::Layer& KvCache::stateful(int layer, std::initializer_list<Kept> kept) {
  require<InvalidTensor>(layer >= 0 && layer < n_layers(), "layer ", layer, " of a cache of ", n_layers(), " layers");
  Layer& l = layers_[static_cast<std::size_t>(layer)];
  require<InvalidTensor>(std::ranges::find(kept, l.shape.kept) != kept.end(), "layer ", layer,
                         " keeps no states of this kind");
  return l;
}

void KvCache::attend_linear(int layer, std::span<const std::int64_t> position, const LinearAttentionArgs& args) {
  Layer& l = stateful(layer, {Kept::Linear, Kept::GatedLinear});
  const auto tokens = static_cast<std::int64_t>(position.size());
  const LayerShape& shape = l.shape;
  const int heads = shape.n_kv_heads * shape.v_heads;
  check_shape("q", args.q, shape.n_kv_heads, tokens, shape.k_dim);
  check_shape("k", args.k, shape.n_kv_heads, tokens, shape.k_dim);
  check_shape("v", args.v, heads, tokens, shape.v_dim);
  check_shape("out", args.out, heads, tokens, shape.v_dim);
  if (shape.kept == Kept::GatedLinear) check_shape("decay", args.decay, heads, tokens, shape.k_dim);
  if (shape.kept == Kept::Linear) check_shape("decay", args.decay, 1, tokens, heads);
  if (args.beta.data != nullptr) check_shape("beta", args.beta, 1, tokens, heads);
  require<InvalidTensor>(args.skip.empty() || std::ssize(args.skip) == heads, args.skip.size(), " skips for ", heads,
                         " heads");
  linear_attention(begin_blocks(l, layer, position), shape, l.k(), l.v(), *l.states, args, parallel_for_);
}

void KvCache::scan(int layer, std::span<const std::int64_t> position, const ScanArgs& args) {
  Layer& l = stateful(layer, {Kept::Scan});
  const auto tokens = static_cast<std::int64_t>(position.size());
  for (const HeadsView* view : {&args.x, &args.decay}) check_shape("x or decay", *view, 1, tokens, l.shape.v_dim);
  for (const HeadsView* view : {&args.b, &args.c}) check_shape("b or c", *view, 1, tokens, l.shape.k_dim);
  check_shape("out", args.out, 1, tokens, l.shape.v_dim);
  require<InvalidTensor>(args.rates.size() == l.shape.state_floats(), args.rates.size(), " rates for ",
                         l.shape.state_floats());
  selective_scan(begin_blocks(l, layer, position), l.shape, l.k(), l.v(), *l.states, args, parallel_for_);
}

AttendSpec KvCache::fetch(int layer, std::span<const std::int64_t> position) {
  require<InvalidTensor>(layer >= 0 && layer < n_layers(), "layer ", layer, " of a cache of ", n_layers(), " layers");
  const StepPlan& plan = planner_->plan(position, layer);
  grow(plan.read_len);
  return spec_of(layer, plan);
}

AttendSpec KvCache::spec_of(int layer, const StepPlan& plan) const {
  const Layer& l = layers_[static_cast<std::size_t>(layer)];
  AttendSpec spec{layer, l.k().view(), l.v().view(), {}, {}, &plan};
  if (!codes_.empty()) {
    spec.k_codes = codes_[static_cast<std::size_t>(layer)].k().view();
    spec.v_codes = codes_[static_cast<std::size_t>(layer)].v().view();
  }
  return spec;
}

void KvCache::attend(const AttendSpec& spec, HeadsView q, const Scoring& scoring, const Sight& sight,
                     MutableHeadsView out) {
  require<InvalidTensor>(spec.plan != nullptr, "attend needs the spec that update_and_fetch returned");
  const StepPlan& plan = *spec.plan;
  const LayerShape& shape = layers_[static_cast<std::size_t>(spec.layer)].shape;
  require<InvalidTensor>(q.heads >= shape.n_kv_heads && q.heads % shape.n_kv_heads == 0, "q has ", q.heads,
                         " heads; a multiple of ", shape.n_kv_heads);
  check_shape("q", q, q.heads, plan.n_tokens(), shape.k_dim);
  check_shape("out", out, q.heads, plan.n_tokens(), shape.v_dim);
  require<InvalidTensor>(sight.window >= 0 && sight.sinks >= 0 && sight.chunk >= 0, "window, sinks and chunk are ",
                         sight.window, ", ", sight.sinks, " and ", sight.chunk, "; none may be negative");
  require<InvalidTensor>(scoring.cap >= 0, "a cap of ", scoring.cap, " on scores; it may not be negative");
  for (const auto& of_heads : {scoring.sink_scores, scoring.slopes}) {
    require<InvalidTensor>(of_heads.empty() || std::ssize(of_heads) == q.heads, of_heads.size(),
                           " sink scores or slopes for ", q.heads, " heads");
  }
  cpu::attend(schedule_for(plan, narrower(sight, sight_), q.heads / shape.n_kv_heads),
              {{{spec.k, spec.v}, {spec.k_codes, spec.v_codes}}}, q, shape.n_kv_heads, scoring, out, parallel_for_,
              scratch_);
}

void KvCache::convolve(const AttendSpec& spec, const Convolution& convolution, MutableHeadsView out) {
  require<InvalidTensor>(spec.plan != nullptr, "convolve needs the spec that update_and_fetch returned");
  const LayerShape& shape = layers_[static_cast<std::size_t>(spec.layer)].shape;
  require<InvalidTensor>(shape.kept == Kept::Inputs, "a convolution over layer ", spec.layer,
                         ", which keeps keys and values");
  check_shape("out", out, shape.n_kv_heads, spec.plan->n_tokens(), shape.k_dim);
  const auto channels = static_cast<std::size_t>(shape.n_kv_heads) * static_cast<std::size_t>(shape.k_dim);
  require<InvalidTensor>(
      convolution.width >= 1 && convolution.weights.size() == channels * static_cast<std::size_t>(convolution.width),
      convolution.weights.size(), " weights for ", channels, " channels of ", convolution.width);
  require<InvalidTensor>(convolution.bias.empty() || convolution.bias.size() == channels, "a bias of ",
                         convolution.bias.size(), " for ", channels, " channels");
  cpu::convolve(*spec.plan, spec.k, convolution, out, parallel_for_);
}

const Schedule& KvCache::schedule_for(const StepPlan& plan, const Sight& sight, int group) {
  if (!same_visibility(plan, scheduled_)) {
    scheduled_ = plan;
    schedules_.clear();
  }
  for (const KeptSchedule& kept : schedules_) {
    if (kept.sight == sight && kept.group == group) return kept.schedule;
  }
  schedules_.push_back({sight, group, Schedule(plan, sight, std::max(1, kTileQueries / group), quantized_)});
  return schedules_.back().schedule;
}

}  // namespace agentkv::cpu
