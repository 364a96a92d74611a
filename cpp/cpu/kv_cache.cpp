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
    : n_kv_heads_(config.n_kv_heads),
      head_dim_(config.head_dim),
      dtype_(parse_kv_dtype(config.kv_dtype)),
      capacity_(config.capacity),
      min_chunk_(config.min_chunk),
      sight_{config.window, config.sinks},
      planner_(std::move(planner)),
      parallel_for_(std::move(parallel_for)) {
  config.check();
  require<InvalidTensor>(head_dim_ <= 256 && head_dim_ % 8 == 0, "head_dim is ", head_dim_,
                         "; a multiple of 8 up to 256");
  require<InvalidTensor>(planner_ != nullptr, "the cache needs a StepPlanner");
  if (!parallel_for_) {
    parallel_for_ = [](std::size_t n, const std::function<void(std::size_t)>& task) {
      for (std::size_t i = 0; i < n; ++i) task(i);
    };
  }
  layers_ = make_layers(config.n_layers, dtype_);
  groups_ = layer_groups(config.windows);
  groups_.resize(layers_.size(), kNoGroup);
}

std::vector<KvCache::Layer> KvCache::make_layers(int n_layers, KvDtype dtype) const {
  std::vector<Layer> layers;
  for (int i = 0; i < n_layers; ++i) {
    const auto pool = [&] { return Pool(n_kv_heads_, head_dim_, dtype, capacity_, min_chunk_); };
    layers.push_back({pool(), pool()});
  }
  return layers;
}

std::size_t KvCache::bytes() const {
  std::size_t total = 0;
  for (const auto* layers : {&layers_, &codes_}) {
    for (const Layer& layer : *layers) total += layer.k.bytes() + layer.v.bytes();
  }
  return total;
}

void KvCache::shrink(Cell cells) noexcept {
  for (auto* layers : {&layers_, &codes_}) {
    for (Layer& layer : *layers) {
      layer.k.shrink(cells);
      layer.v.shrink(cells);
    }
  }
  count_cells();
}

void KvCache::grow(Cell cells) {
  if (cells <= allocated_) return;
  try {
    for (Layer& layer : layers_) {
      layer.k.reserve(cells);
      layer.v.reserve(cells);
    }
  } catch (...) {
    shrink(allocated_);
    throw;
  }
  count_cells();
}

void KvCache::count_cells() {
  allocated_ = capacity_;
  for (const Layer& layer : layers_) allocated_ = std::min({allocated_, layer.k.cells(), layer.v.cells()});
}

AttendSpec KvCache::update_and_fetch(int layer, std::span<const std::int64_t> position, HeadsView k, HeadsView v) {
  require<InvalidTensor>(layer >= 0 && layer < n_layers(), "layer ", layer, " of a cache of ", n_layers(), " layers");
  const auto tokens = static_cast<std::int64_t>(position.size());
  check_shape("k", k, n_kv_heads_, tokens, head_dim_);
  check_shape("v", v, n_kv_heads_, tokens, head_dim_);

  const StepPlan& plan = planner_->plan(position, layer);
  require<InvalidTensor>(plan.n_tokens() == tokens, "the plan has ", plan.n_tokens(), " rows; k and v have ", tokens);
  Cell needed = plan.read_len;
  for (Cell cell : plan.write_cells) needed = std::max(needed, cell + 1);
  grow(needed);
  set_quantized(plan.write_cells, false);
  set_whole(plan.write_cells);
  Layer& l = layers_[static_cast<std::size_t>(layer)];
  l.k.will_write(plan.write_cells);
  l.v.will_write(plan.write_cells);
  // Few rows are not worth waking threads for.
  constexpr std::int64_t tokens_per_task = 64;
  const auto chunks = static_cast<std::size_t>((tokens + tokens_per_task - 1) / tokens_per_task);
  const auto store = [&](std::size_t chunk) {
    const auto begin = static_cast<std::int64_t>(chunk) * tokens_per_task;
    for (std::int64_t t = begin; t < std::min(tokens, begin + tokens_per_task); ++t) {
      const Cell cell = plan.write_cells[static_cast<std::size_t>(t)];
      l.k.write(k, static_cast<std::int32_t>(t), cell);
      l.v.write(v, static_cast<std::int32_t>(t), cell);
    }
  };
  if (chunks == 1) {
    store(0);
  } else {
    parallel_for_(chunks, store);
  }
  AttendSpec spec{layer, l.k.view(), l.v.view(), {}, {}, &plan};
  if (!codes_.empty()) {
    spec.k_codes = codes_[static_cast<std::size_t>(layer)].k.view();
    spec.v_codes = codes_[static_cast<std::size_t>(layer)].v.view();
  }
  return spec;
}

void KvCache::attend(const AttendSpec& spec, HeadsView q, float scale, Pos window, MutableHeadsView out, Pos sinks) {
  require<InvalidTensor>(spec.plan != nullptr, "attend needs the spec that update_and_fetch returned");
  const StepPlan& plan = *spec.plan;
  require<InvalidTensor>(q.heads >= n_kv_heads_ && q.heads % n_kv_heads_ == 0, "q has ", q.heads,
                         " heads; a multiple of ", n_kv_heads_);
  check_shape("q", q, q.heads, plan.n_tokens(), head_dim_);
  check_shape("out", out, q.heads, plan.n_tokens(), head_dim_);
  require<InvalidTensor>(window >= 0 && sinks >= 0, "window and sinks are ", window, " and ", sinks,
                         "; neither may be negative");
  const Sight sight = narrower({window, sinks}, sight_);
  cpu::attend(schedule_for(plan, sight.window, sight.sinks, q.heads / n_kv_heads_),
              {{{spec.k, spec.v}, {spec.k_codes, spec.v_codes}}}, q, n_kv_heads_, scale, out, parallel_for_, scratch_);
}

const Schedule& KvCache::schedule_for(const StepPlan& plan, Pos window, Pos sinks, int group) {
  if (!same_visibility(plan, scheduled_)) {
    scheduled_ = plan;
    schedules_.clear();
  }
  for (const KeptSchedule& kept : schedules_) {
    if (kept.window == window && kept.sinks == sinks && kept.group == group) return kept.schedule;
  }
  schedules_.push_back(
      {window, sinks, group, Schedule(plan, window, sinks, std::max(1, kTileQueries / group), quantized_)});
  return schedules_.back().schedule;
}

}  // namespace agentkv::cpu
