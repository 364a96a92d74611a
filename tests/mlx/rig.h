// Sequences over one MLX cache, and attention in doubles over what it holds. All of it is used on the owner.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "arrays.h"
#include "core/cells.h"
#include "cpp/check.h"
#include "mlx/kv_cache.h"

namespace agentkv::mlx::testing {

inline constexpr int kLayers = 2, kKvHeads = 2, kHeads = 6, kDim = 32;
inline constexpr float kScale = 0.2f;
inline const char* const kDtypes[] = {"fp32", "fp16", "bf16", "int8", "int4"};

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

// Attention of q over what a view holds, in doubles. mask: [T, len].
inline mx::array reference(const AttendSpec& spec, const mx::array& q, const std::vector<std::uint8_t>& mask) {
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
  std::shared_ptr<Cells> cells;
  KvCache cache;
  unsigned seed = 1;
  std::vector<std::int64_t> position;

  explicit Rig(const char* dtype, Cell capacity = 256)
      : cells(std::make_shared<Cells>(capacity)), cache(config(dtype, capacity), cells) {}

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

}  // namespace agentkv::mlx::testing
