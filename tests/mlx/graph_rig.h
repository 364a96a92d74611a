// Runs hand-packed graphs over a small cache.
#pragma once

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/cells.h"
#include "cpp/check.h"
#include "mlx/graph.h"
#include "mlx/graph_writer.h"
#include "mlx/kv_cache.h"
#include "mlx/owner.h"

namespace agentkv::testing {

namespace mx = ::mlx::core;
using Floats = std::vector<float>;
using Ints = std::vector<std::int64_t>;

inline mlx::Input rows(const Floats& values, mx::Shape shape) { return {values.data(), mx::float32, std::move(shape)}; }
inline mlx::Input rows(const Ints& values) { return {values.data(), mx::int64, {static_cast<int>(values.size())}}; }

// One layer of 2 K/V heads of 16 dimensions.
struct SmallCache {
  static CacheConfig config() {
    CacheConfig config;
    config.n_layers = 2;
    config.n_kv_heads = 2;
    config.head_dim = 16;
    config.capacity = 64;
    config.min_chunk = 8;
    config.kv_dtype = "fp32";
    return config;
  }

  // Calls `before_layer` as each layer asks for its plan, which is before it writes.
  struct WatchedCells final : Cells {
    using Cells::Cells;
    std::function<void(int layer)> before_layer;
    const StepPlan& plan(std::span<const std::int64_t> position, int layer) override {
      if (before_layer) before_layer(layer);
      return Cells::plan(position, layer);
    }
  };

  std::shared_ptr<WatchedCells> cells = std::make_shared<WatchedCells>(64, 4);
  std::shared_ptr<mlx::KvCache> layer = std::make_shared<mlx::KvCache>(config(), cells);
};

// A graph with its constants, on the owner.
class Rig {
 public:
  using Constants = std::map<std::string, mx::array>;

  // `constants` is called on the owner: arrays live there.
  explicit Rig(const GraphWriter& writer, const std::function<Constants()>& constants = [] { return Constants{}; }) {
    const Bytes blob = writer.blob();
    mlx::on_owner([&] {
      const Constants named = constants();
      graph_ = std::make_unique<mlx::Graph>(
          blob.data(), blob.size(), [&](const std::string& key, mx::Dtype, const mx::Shape&) { return named.at(key); });
    });
  }
  ~Rig() {
    mlx::on_owner([this] { graph_.reset(); });
  }

  // The first output as float32.
  Floats run(const std::vector<mlx::Input>& inputs) {
    return mlx::on_owner([&] {
      try {
        auto outputs = graph_->run(inputs, *cache.layer);
        const auto out = mx::contiguous(mx::astype(outputs.at(0), mx::float32));
        mx::eval(out);
        cache.layer->settle();
        return Floats(out.data<float>(), out.data<float>() + out.size());
      } catch (...) {
        cache.layer->abandon();
        throw;
      }
    });
  }

  SmallCache cache;

 private:
  std::unique_ptr<mlx::Graph> graph_;
};

inline void check_near(const Floats& got, const std::vector<double>& want, double tolerance = 1e-5) {
  CHECK_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (!(std::abs(got[i] - want[i]) <= tolerance)) {
      fail(__FILE__, __LINE__, "element " + std::to_string(i) + ": " + shown(got[i]) + " vs " + shown(want[i]));
    }
  }
}

// The same numbers each time, in [-1, 1).
inline Floats noise(std::size_t n, std::uint32_t seed = 1) {
  Floats out(n);
  for (auto& x : out) {
    seed = seed * 1664525u + 1013904223u;
    x = static_cast<float>(seed >> 8) / static_cast<float>(1 << 23) - 1.0f;
  }
  return out;
}

}  // namespace agentkv::testing
