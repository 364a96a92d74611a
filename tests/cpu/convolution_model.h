// A layer of a short convolution over a cache, and random rows for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "core/cells.h"
#include "cpp/numbers.h"
#include "cpu/convolution.h"
#include "cpu/kv_cache.h"

namespace agentkv::cpu::testing::convolution {

inline constexpr int kHeads = 2, kDim = 24, kChannels = kHeads * kDim, kWidth = 4;

inline std::vector<float> random_floats(int n, unsigned seed) {
  std::minstd_rand rng(seed);
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& value : x) value = agentkv::testing::normal(rng);
  return x;
}

struct Model {
  std::shared_ptr<Cells> cells = std::make_shared<Cells>(256);
  std::shared_ptr<KvCache> cache;
  std::vector<float> weights = random_floats(kChannels * kWidth, 1), bias = random_floats(kChannels, 2);

  Model() {
    CacheConfig config;
    config.capacity = 256;
    config.kv_dtype = "int4";  // inputs are float32 all the same
    config.n_layers = 1;
    config.n_kv_heads = kHeads;
    config.head_dim = kDim;
    config.shapes = {{kHeads, kDim, kDim, Kept::Inputs}};
    config.windows = {kWidth};
    cache = std::make_shared<KvCache>(config, cells, nullptr);
  }

  std::vector<float> feed(std::span<const float> x, SeqId seq = 0) {
    const auto n = static_cast<std::int32_t>(x.size() / kChannels);
    cells->begin_step(std::vector<SeqId>(static_cast<std::size_t>(n), seq));
    const std::vector<std::int64_t> position(cells->step_positions().begin(), cells->step_positions().end());
    std::vector<float> out(x.size());
    const auto spec = cache->update_and_fetch(0, position, {x.data(), kHeads, n, kDim, kDim, kChannels}, {});
    cache->convolve(spec, {kWidth, weights, bias}, {out.data(), kHeads, n, kDim, kDim, kChannels});
    cells->commit_step();
    return out;
  }
};

}  // namespace agentkv::cpu::testing::convolution
