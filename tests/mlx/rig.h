// Sequences over one MLX cache, and attention in doubles over what it holds. All of it is used on the owner.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "arrays.h"
#include "core/cells.h"
#include "cpp/check.h"
#include "mlx/kv_cache.h"

namespace agentkv::mlx::testing {

inline constexpr int kLayers = 2, kKvHeads = 2, kHeads = 6, kDim = 32;
inline constexpr float kScale = 0.2f;
inline const char* const kDtypes[] = {"fp32", "fp16", "bf16", "int8", "int8/int4", "int4"};

inline CacheConfig config(const char* dtype, Cell capacity = 256) {
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
inline mx::array heads_of(int heads, int tokens, unsigned seed, int dim = kDim) {
  return mx::transpose(random_array({1, tokens, heads, dim}, seed), {0, 2, 1, 3});
}

// How rows of a step attend, in numbers that a reference can read.
struct Way {
  Sight sight = {};
  float cap = 0;
  std::vector<float> sink_scores = {}, slopes = {};  // of kHeads
  mx::Dtype dtype = mx::float32;

  Scoring scoring() const {
    const auto of_heads = [](const std::vector<float>& x) {
      return x.empty() ? std::nullopt : std::optional(mx::array(x.begin(), {kHeads}, mx::float32));
    };
    return {kScale, cap, of_heads(sink_scores), of_heads(slopes)};
  }
};

// Attention of q over what a view holds, in doubles.
inline mx::array reference(const AttendSpec& spec, const mx::array& q, const Way& way) {
  mx::array k = mx::contiguous(spec.k.dense(mx::float32)), v = mx::contiguous(spec.v.dense(mx::float32));
  mx::array queries = mx::contiguous(mx::astype(q, mx::float32));
  mx::eval(k, v, queries);
  const StepPlan& plan = *spec.plan;
  const auto mask = plan.mask(way.sight.window, way.sight.sinks, way.sight.chunk);
  const auto seen = plan.cell_positions();
  const int tokens = q.shape(2), len = k.shape(2), group = q.shape(1) / k.shape(1), v_dim = v.shape(3);
  const auto row = [](const mx::array& a, int head, int i) {
    return a.data<float>() + (static_cast<std::size_t>(head) * a.shape(2) + i) * a.shape(3);
  };
  std::vector<float> out;
  for (int head = 0; head < q.shape(1); ++head) {
    for (int t = 0; t < tokens; ++t) {
      std::vector<double> sum(static_cast<std::size_t>(v_dim));
      double total = way.sink_scores.empty() ? 0 : std::exp(way.sink_scores[head]);
      for (int j = 0; j < len; ++j) {
        if (!mask[static_cast<std::size_t>(t) * len + j]) continue;
        double score = 0;
        for (int d = 0; d < k.shape(3); ++d) score += double{row(queries, head, t)[d]} * row(k, head / group, j)[d];
        score *= kScale;
        if (way.cap > 0) score = way.cap * std::tanh(score / way.cap);
        if (!way.slopes.empty()) score += double{way.slopes[head]} * (seen[j] - plan.positions[t]);
        const double weight = std::exp(score);
        total += weight;
        for (int d = 0; d < v_dim; ++d) sum[d] += weight * row(v, head / group, j)[d];
      }
      for (int d = 0; d < v_dim; ++d) out.push_back(static_cast<float>(sum[d] / total));
    }
  }
  return mx::array(out.begin(), {1, q.shape(1), tokens, v_dim}, mx::float32);
}

// Sequences over one cache, fed with random rows.
struct Rig {
  CacheConfig made_of;
  std::shared_ptr<Cells> cells;
  KvCache cache;
  unsigned seed = 1;
  std::vector<std::int64_t> position;

  explicit Rig(const CacheConfig& c) : made_of(c), cells(std::make_shared<Cells>(c.capacity)), cache(c, cells) {}
  explicit Rig(const char* dtype, Cell capacity = 256) : Rig(config(dtype, capacity)) {}

  void begin(const std::vector<SeqId>& rows) {
    cells->begin_step(rows);
    const auto positions = cells->step_positions();
    position.assign(positions.begin(), positions.end());
  }
  int tokens() const { return static_cast<int>(position.size()); }
  mx::array k_of(int layer) {
    const LayerShape shape = made_of.shape(layer);
    return heads_of(shape.n_kv_heads, tokens(), ++seed, shape.k_dim);
  }
  mx::array v_of(int layer) {
    const LayerShape shape = made_of.shape(layer);
    return heads_of(shape.n_kv_heads, tokens(), ++seed, shape.v_dim);
  }

  // One step of every layer; returns the largest error of its attention.
  float step(const std::vector<SeqId>& rows, const Way& way) {
    begin(rows);
    std::vector<mx::array> outs, wants;
    for (int layer = 0; layer < kLayers; ++layer) {
      const LayerShape shape = made_of.shape(layer);
      cache.update_and_fetch(layer, position, mx::astype(k_of(layer), way.dtype), mx::astype(v_of(layer), way.dtype));
      const auto spec = cache.fetch(layer, position);
      const mx::array q = mx::astype(heads_of(kHeads, tokens(), ++seed, shape.k_dim), way.dtype);
      outs.push_back(cache.attend(spec, q, way.scoring(), way.sight));
      CHECK(outs.back().shape() == (mx::Shape{1, kHeads, tokens(), shape.v_dim}) && outs.back().dtype() == way.dtype);
      wants.push_back(reference(spec, q, way));
    }
    mx::eval(outs);
    cache.settle();
    cells->commit_step();
    float worst = 0;
    for (int layer = 0; layer < kLayers; ++layer)
      worst = std::max(worst, largest_difference(outs[layer], wants[layer]));
    return worst;
  }
  float step(const std::vector<SeqId>& rows, Pos window = 0, Pos sinks = 0, mx::Dtype dtype = mx::float32) {
    return step(rows, Way{.sight = {.window = window, .sinks = sinks}, .dtype = dtype});
  }

  // One step of every layer that attends to nothing.
  void write(int n) {
    begin(std::vector<SeqId>(static_cast<std::size_t>(n), 0));
    for (int layer = 0; layer < kLayers; ++layer) cache.update_and_fetch(layer, position, k_of(layer), v_of(layer));
    cache.settle();
    cells->commit_step();
  }

  // What layer holds in its first n cells, without writing anything that a later step sees.
  std::vector<mx::array> held(int layer, int n) {
    begin({9});
    const auto spec = cache.update_and_fetch(layer, position, k_of(layer), v_of(layer));
    std::vector<mx::array> out = {mx::contiguous(cells_of(spec.k.dense(mx::float32), 0, n)),
                                  mx::contiguous(cells_of(spec.v.dense(mx::float32), 0, n))};
    mx::eval(out);
    cache.settle();
    cells->abort_step();
    return out;
  }
};

}  // namespace agentkv::mlx::testing
