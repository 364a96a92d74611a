// Forwards that fail in the middle, and rows that are not numbers: others do not notice.
#include <cmath>
#include <stdexcept>
#include <vector>

#include "core/errors.h"
#include "mlx/owner.h"
#include "rig.h"

using namespace agentkv;
using namespace agentkv::mlx;
using namespace agentkv::mlx::testing;

namespace {

// A forward that fails, in whatever layer and however, leaves every row that was there and a cache that works.
void test_failures() {
  for (const char* dtype : kDtypes) {
    for (const int broken : {0, 1}) {
      Rig rig(dtype);
      rig.step(std::vector<SeqId>(20, 0));
      const std::vector<std::vector<mx::array>> before = {rig.held(0, 20), rig.held(1, 20)};
      const auto check_held = [&](const auto& want) {
        for (int layer = 0; layer < kLayers; ++layer) {
          const auto have = rig.held(layer, 20);
          CHECK(same(have[0], want[layer][0]) && same(have[1], want[layer][1]));
        }
      };

      // One that cannot be evaluated, which shows when its output is wanted, or when the cache is settled.
      for (const bool output_first : {true, false}) {
        rig.begin({0, 1, 0});
        std::vector<mx::array> outs;
        for (int layer = 0; layer < kLayers; ++layer) {
          const mx::array k = rig.k_of(0), v = rig.k_of(0);
          const auto spec = rig.cache.update_and_fetch(layer, rig.position, k, layer == broken ? failing(v) : v);
          outs.push_back(rig.cache.attend(spec, heads_of(kHeads, 3, 5), {.scale = kScale}));
        }
        if (output_first) {
          CHECK_THROWS(mx::eval(outs), std::runtime_error, "no memory left");
          rig.cache.abandon();
        } else {
          CHECK_THROWS(rig.cache.settle(), std::runtime_error, "no memory left");
        }
        outs.clear();
        rig.cache.settle();
        rig.cells->abort_step();
        check_held(before);
      }
      CHECK(rig.step({0, 1, 1}) < 1e-5f);

      // One that stops between two layers, or before anything was evaluated.
      rig.begin({0, 0});
      rig.cache.update_and_fetch(0, rig.position, rig.k_of(0), rig.k_of(0));
      rig.cache.abandon();
      rig.cells->abort_step();
      check_held(before);
      CHECK(rig.step({1, 0}) < 1e-5f);
    }
  }
}

// Keys that hold the values, too, are kept without what is not finite.
void test_nan_in_latents_reaches_nobody() {
  CacheConfig latents = config("fp32");
  latents.shapes = {{1, 48, 32, Kept::Latent}, {1, 48, 32, Kept::Latent}};
  Rig rig(latents);
  rig.step({0, 0, 0, 0});
  rig.cells->seq_cp(0, 1);
  rig.begin({1, 0});
  const mx::array sick = mx::array({NAN, 0.0f}, {1, 1, 2, 1});
  for (int layer = 0; layer < kLayers; ++layer) {
    const mx::array rows = mx::add(rig.k_of(layer), sick);
    const auto spec = rig.cache.update_and_fetch(layer, rig.position, rows, rows);
    const mx::array out = rig.cache.attend(spec, heads_of(kHeads, 2, 3, 48), {.scale = kScale});
    CHECK(!mx::any(mx::isnan(out)).item<bool>());
  }
  rig.cache.settle();
  rig.cells->commit_step();
  rig.cells->seq_rm(1);
  CHECK(rig.step({0, 0}) < 1e-5f);
}

// What one branch broke stays its own, also after its cells went back to the pool.
void test_nan_stays_with_its_branch() {
  for (const char* dtype : kDtypes) {
    Rig rig(dtype);
    rig.step({0, 0, 0, 0});
    rig.cells->seq_cp(0, 1);
    rig.begin({1, 0});
    const mx::array sick = mx::array({NAN, 0.0f}, {1, 1, 2, 1});
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto spec =
          rig.cache.update_and_fetch(layer, rig.position, mx::add(rig.k_of(0), sick), mx::add(rig.k_of(0), sick));
      const mx::array out = rig.cache.attend(spec, heads_of(kHeads, 2, 3), {.scale = kScale});
      const mx::array broken = mx::isnan(out);
      CHECK(mx::all(cells_of(broken, 0, 1)).item<bool>());
      CHECK(!mx::any(cells_of(broken, 1, 1)).item<bool>());
    }
    rig.cache.settle();
    rig.cells->commit_step();
    rig.cells->seq_rm(1);
    rig.cells->seq_cp(0, 2);
    CHECK(rig.step({0, 2}) < 1e-5f);
  }
}

}  // namespace

int main() {
  on_owner([] {
    test_failures();
    test_nan_in_latents_reaches_nobody();
    test_nan_stays_with_its_branch();
  });
}
