// A layer of a selective scan over a cache, and random rows for it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "core/cells.h"
#include "cpp/numbers.h"
#include "cpu/kv_cache.h"
#include "cpu/selective_scan.h"

namespace agentkv::cpu::testing::scan {

inline constexpr int kChannels = 136, kStates = 5;  // more than a task takes, and no whole vectors

struct Inputs {
  std::vector<float> x, decay, b, c;  // [T, ...]

  Inputs(Pos length, unsigned seed) {
    std::minstd_rand rng(seed);
    const auto fill = [&](std::vector<float>& out, int width, auto draw) {
      out.resize(static_cast<std::size_t>(length * width));
      for (float& value : out) value = draw();
    };
    fill(x, kChannels, [&] { return agentkv::testing::normal(rng); });
    fill(decay, kChannels, [&] { return 0.2f * agentkv::testing::unit(rng); });
    fill(b, kStates, [&] { return agentkv::testing::normal(rng); });
    fill(c, kStates, [&] { return agentkv::testing::normal(rng); });
  }

  // Row `row` becomes row `at` of another.
  void take(Pos row, const Inputs& other, Pos at) {
    const auto copy = [&](std::vector<float>& to, const std::vector<float>& from, int width) {
      std::copy_n(from.begin() + at * width, width, to.begin() + row * width);
    };
    copy(x, other.x, kChannels), copy(decay, other.decay, kChannels);
    copy(b, other.b, kStates), copy(c, other.c, kStates);
  }
};

inline std::vector<float> rates() {
  std::vector<float> out(kStates * kChannels);
  for (int i = 0; i < kStates * kChannels; ++i)
    out[static_cast<std::size_t>(i)] = -0.1f * static_cast<float>(1 + i % 7);
  return out;
}

class Model {
 public:
  Model() : cells_(std::make_shared<Cells>(1024)), rates_(rates()) {
    CacheConfig config;
    config.capacity = 1024;
    config.kv_dtype = "fp16";  // its rows are float32 all the same
    config.n_layers = config.n_kv_heads = 1;
    config.head_dim = kStates;
    config.shapes = {{1, kStates, kChannels, Kept::Scan}};
    config.windows = {kStateWindow};
    cache_ = std::make_shared<KvCache>(config, cells_, nullptr);
    cells_->set_layer(cache_);
  }

  Cells& cells() { return *cells_; }
  KvCache& cache() { return *cache_; }

  std::vector<float> feed(const Inputs& in, Pos first, Pos n, SeqId seq = 0) {
    cells_->begin_step(std::vector<SeqId>(static_cast<std::size_t>(n), seq));
    return run(in, first, n);
  }

  std::vector<float> run(const Inputs& in, Pos first, Pos n) {
    const std::vector<std::int64_t> position(cells_->step_positions().begin(), cells_->step_positions().end());
    std::vector<float> out(static_cast<std::size_t>(n * kChannels));
    const auto view = [&](const std::vector<float>& data, int width) {
      return HeadsView{data.data() + first * width, 1, n, width, 0, width};
    };
    cache_->scan(0, position,
                 {view(in.x, kChannels),
                  view(in.decay, kChannels),
                  rates_,
                  view(in.b, kStates),
                  view(in.c, kStates),
                  {out.data(), 1, n, kChannels, 0, kChannels}});
    cells_->commit_step();
    return out;
  }

 private:
  std::shared_ptr<Cells> cells_;
  std::shared_ptr<KvCache> cache_;
  std::vector<float> rates_;
};

}  // namespace agentkv::cpu::testing::scan
