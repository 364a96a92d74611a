// A layer of linear attention over a cache, and random rows for it.
#pragma once

#include <cstddef>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "core/cells.h"
#include "cpp/numbers.h"
#include "cpu/kv_cache.h"
#include "cpu/linear_attention.h"

namespace agentkv::cpu::testing::linear_attention {

inline constexpr int kKeyHeads = 2, kShared = 3, kHeads = kKeyHeads * kShared, kKeys = 24, kValues = 40;
// What a layer of linear attention is like.
struct Kind {
  bool corrects = false;
  bool by_number = false;  // each number of a key fades by itself
  bool skips = false;

  int key_heads() const { return by_number ? kHeads : kKeyHeads; }
  int shared() const { return by_number ? 1 : kShared; }
  int decays() const { return by_number ? kKeys : 1; }
};
inline constexpr Kind kMamba2{false, false, true}, kDelta{true, false, false}, kKimi{true, true, false};

// What a token brings to each head.
struct Inputs {
  std::vector<float> q, k, v, decay, beta;  // [T, heads, ...]

  Inputs(Pos length, unsigned seed, Kind kind) {
    std::minstd_rand rng(seed);
    const auto normal = [&] { return agentkv::testing::normal(rng); };
    const auto unit = [&] { return agentkv::testing::unit(rng); };
    const auto fill = [&](std::vector<float>& x, int width, auto draw) {
      x.resize(static_cast<std::size_t>(length * width));
      for (float& value : x) value = draw();
    };
    fill(q, kind.key_heads() * kKeys, [&] { return normal() * 0.3f; });
    fill(k, kind.key_heads() * kKeys, [&] { return normal() * 0.2f; });
    fill(v, kHeads * kValues, normal);
    fill(decay, kHeads * kind.decays(), [&] { return -0.2f * unit(); });
    fill(beta, kHeads, unit);
  }
};

inline float skip_of(int head) { return 0.5f - 0.25f * static_cast<float>(head); }

class Model {
 public:
  explicit Model(Kind kind) : cells_(std::make_shared<Cells>(1024)), kind_(kind) {
    for (int head = 0; head < kHeads; ++head) skips_.push_back(skip_of(head));
    CacheConfig config;
    config.capacity = 1024;
    config.kv_dtype = "int8";  // its rows are float32 all the same
    config.n_layers = 1;
    config.n_kv_heads = kHeads;
    config.head_dim = kKeys;
    const Kept kept = kind.by_number ? Kept::GatedLinear : Kept::Linear;
    config.shapes = {{kind.key_heads(), kKeys, kValues, kept, kind.shared()}};
    config.windows = {kStateBlock + 1};
    cache_ = std::make_shared<KvCache>(config, cells_, nullptr);
    cells_->set_layer(cache_);
  }

  Cells& cells() { return *cells_; }
  KvCache& cache() { return *cache_; }

  // Rows [first, first + n) of x, as the next ones of a sequence; [n, heads, values].
  std::vector<float> feed(const Inputs& x, Pos first, Pos n, SeqId seq = 0) {
    const std::vector<SeqId> rows(static_cast<std::size_t>(n), seq);
    cells_->begin_step(rows);
    return run(x, first, n);
  }

  std::vector<float> run(const Inputs& x, Pos first, Pos n) {
    std::vector<std::int64_t> position(cells_->step_positions().begin(), cells_->step_positions().end());
    const auto rows = static_cast<std::size_t>(n);
    std::vector<float> out(rows * kHeads * kValues);
    const auto view = [&](const std::vector<float>& data, int heads, int width) {
      return HeadsView{data.data() + first * heads * width, heads, n, width, width, heads * width};
    };
    const auto keys = [&](const std::vector<float>& data) { return view(data, kind_.key_heads(), kKeys); };
    cache_->attend_linear(0, position,
                          {.q = keys(x.q),
                           .k = keys(x.k),
                           .v = view(x.v, kHeads, kValues),
                           .decay = kind_.by_number ? view(x.decay, kHeads, kKeys) : view(x.decay, 1, kHeads),
                           .beta = view(x.beta, 1, kHeads),
                           .corrects = kind_.corrects,
                           .skip = kind_.skips ? std::span<const float>(skips_) : std::span<const float>(),
                           .out = {out.data(), kHeads, n, kValues, kValues, kHeads * kValues}});
    cells_->commit_step();
    return out;
  }

 private:
  std::shared_ptr<Cells> cells_;
  std::shared_ptr<KvCache> cache_;
  Kind kind_;
  std::vector<float> skips_;
};

}  // namespace agentkv::cpu::testing::linear_attention
