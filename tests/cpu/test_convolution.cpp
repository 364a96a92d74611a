// Short convolutions against plain sums, and the same bits however rows are fed.
#include <cmath>
#include <cstring>
#include <vector>

#include "convolution_model.h"
#include "core/cells.h"
#include "core/errors.h"
#include "core/isa.h"
#include "cpp/check.h"
#include "cpu/convolution.h"
#include "cpu/kv_cache.h"

using namespace agentkv;
using namespace agentkv::cpu;
using namespace agentkv::cpu::testing::convolution;

namespace {

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
