// Short convolutions against plain sums, and the same bits however rows are fed.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/cells.h"
#include "core/errors.h"
#include "core/isa.h"
#include "cpp/check.h"
#include "cpu/convolution.h"
#include "cpu/kv_cache.h"

using namespace agentkv;
using namespace agentkv::cpu;

namespace {

constexpr int kHeads = 2, kDim = 24, kChannels = kHeads * kDim, kWidth = 4;

std::vector<float> random_floats(int n, unsigned seed) {
  std::minstd_rand rng(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& value : x) value = normal(rng);
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

void rows_are_sums_of_the_last_inputs() {
  constexpr int kRows = 40;
  const std::vector<float> x = random_floats(kRows * kChannels, 3);
  for (const std::string_view isa : available_isas()) {
    set_isa(isa);
    Model model;
    const std::vector<float> whole = model.feed(x);
    for (int t = 0; t < kRows; ++t) {
      for (int c = 0; c < kChannels; ++c) {
        double want = model.bias[static_cast<std::size_t>(c)];
        for (int j = 0; j < kWidth && j <= t; ++j) {
          want += double{x[static_cast<std::size_t>((t - j) * kChannels + c)]} *
                  model.weights[static_cast<std::size_t>(c * kWidth + kWidth - 1 - j)];
        }
        CHECK(std::abs(whole[static_cast<std::size_t>(t * kChannels + c)] - want) < 1e-5);
      }
    }
    for (const std::size_t chunk : {1u, 3u, 17u}) {
      Model other;
      std::vector<float> got;
      for (std::size_t first = 0; first < x.size(); first += chunk * kChannels) {
        const auto rows = other.feed(std::span(x).subspan(first, std::min(chunk * kChannels, x.size() - first)));
        got.insert(got.end(), rows.begin(), rows.end());
      }
      CHECK(std::memcmp(got.data(), whole.data(), whole.size() * sizeof(float)) == 0);
    }
    model.cells->seq_cp(0, 1, 0, 21);
    const std::vector<float> branch = model.feed(std::span(x).subspan(21 * kChannels), 1);
    CHECK(std::memcmp(branch.data(), whole.data() + 21 * kChannels, branch.size() * sizeof(float)) == 0);
  }
}

void refusals() {
  Model model;
  const std::vector<float> x = random_floats(kChannels, 4);
  std::vector<float> y(kChannels);
  model.cells->begin_step(std::vector<SeqId>{0});
  const std::vector<std::int64_t> position{0};
  const auto spec = model.cache->update_and_fetch(0, position, {x.data(), kHeads, 1, kDim, kDim, kChannels}, {});
  const MutableHeadsView out{y.data(), kHeads, 1, kDim, kDim, kChannels};
  CHECK_THROWS(model.cache->convolve({}, {kWidth, model.weights, {}}, out), InvalidTensor, "the spec");
  CHECK_THROWS(model.cache->convolve(spec, {kWidth - 1, model.weights, {}}, out), InvalidTensor, "weights for 48");
  CHECK_THROWS(model.cache->convolve(spec, {kWidth, model.weights, x}, {y.data(), 1, 1, kDim, 0, 0}), InvalidTensor,
               "out is");
  CHECK_THROWS(model.cache->convolve(spec, {kWidth, model.weights, std::span(x).first(3)}, out), InvalidTensor,
               "a bias of 3");
}

}  // namespace

int main() {
  rows_are_sums_of_the_last_inputs();
  refusals();
}
