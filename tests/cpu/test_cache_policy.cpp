// The recipe "a cache policy" of docs/internals/recipes.md, followed: a window that forgets what no row sees any more,
// from the outside, under the byte layer and the verbs as they are.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/cache_builders.h"
#include "core/cells.h"
#include "core/errors.h"
#include "core/message.h"
#include "cpp/check.h"
#include "cpu/kv_cache.h"
#include "fixture.h"

using namespace agentkv;
using namespace agentkv::cpu;
using namespace agentkv::cpu::testing;

namespace {

constexpr Pos kWindow = 8;  // what "window:8" asks for
constexpr int kHeads = 2, kDim = 16;

// Sequences keep the last `window` positions; the cells of earlier ones are free again after each step.
class WindowCells final : public Cells {
 public:
  explicit WindowCells(const CacheConfig& config)
      : Cells(config.capacity, config.max_sequences), window_(std::stoi(config.policy.substr(sizeof("window:") - 1))) {}

  void commit_step() override {
    Cells::commit_step();
    for (SeqId seq = 0; seq < max_sequences(); ++seq) forget(seq);
  }
  void commit(std::span<const std::int32_t> accepted, std::int32_t len, SeqId seq) override {
    Cells::commit(accepted, len, seq);
    forget(seq);
  }

  // What was forgotten does not come back: a rollback that would end in it is refused, before anything changes.
  void seq_rm(SeqId seq, Pos p0, Pos p1) override {
    const auto runs = seq_runs(seq);
    if (!runs.empty() && p0 > 0 && p0 <= runs.front().position) {
      throw InvalidRange(error_text("sequence ", seq, " has forgotten the positions below ", runs.front().position,
                                    ": it cannot go back to ", p0));
    }
    Cells::seq_rm(seq, p0, p1);
  }

 private:
  void forget(SeqId seq) {
    if (seq_len(seq) > window_) Cells::seq_rm(seq, 0, seq_len(seq) - window_);
  }

  Pos window_;
};

CacheConfig config(const char* policy) {
  CacheConfig config{{.capacity = 256, .kv_dtype = "fp32", .min_chunk = 16, .max_sequences = 4, .policy = policy}};
  config.n_layers = 1;
  config.n_kv_heads = kHeads;
  config.head_dim = kDim;
  return config;
}

// A cache fed with random rows, each a function of the random numbers drawn so far.
struct Fed {
  BuiltCache built;
  std::mt19937 random{3};

  explicit Fed(const char* policy) : built(CacheBuilderRegistry::instance().build("CPU", config(policy))) {}

  Tensor step(const std::vector<SeqId>& rows) {
    const auto n = static_cast<int>(rows.size());
    const Tensor q(2 * kHeads, n, kDim, random), k(kHeads, n, kDim, random), v(kHeads, n, kDim, random);
    built.cells->begin_step(rows);
    const auto positions = built.cells->step_positions();
    const std::vector<std::int64_t> fed(positions.begin(), positions.end());
    auto& layer = static_cast<KvCache&>(*built.layer);
    Tensor out(2 * kHeads, n, kDim);
    layer.attend(layer.update_and_fetch(0, fed, k.view(), v.view()), q.view(), {.scale = 0.25f}, {.window = kWindow},
                 out.mutable_view());
    built.cells->commit_step();
    return out;
  }
};

void a_window_says_what_the_whole_history_says() {
  Fed full("full"), window("window:8");
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    std::vector<SeqId> rows;
    for (int left = std::uniform_int_distribution<int>(1, 6)(random); left > 0; --left) {
      rows.push_back(std::uniform_int_distribution<SeqId>(0, 2)(random));
    }
    const Tensor want = full.step(rows), got = window.step(rows);
    CHECK(want.data == got.data);  // to the bit: cells differ, positions do not
    CHECK(window.built.cells->used() <= 3 * kWindow);
    if (full.built.cells->used() > 200) {
      for (Fed* fed : {&full, &window}) {
        for (SeqId seq = 0; seq < 3; ++seq) {
          if (fed->built.cells->seq_len(seq) > 0) fed->built.cells->seq_rm(seq);
        }
      }
    }
  }
}

void a_rollback_ends_within_the_window_or_is_refused() {
  Fed window("window:8");
  for (int i = 0; i < 20; ++i) window.step({0});
  auto& cells = *window.built.cells;
  CHECK_THROWS(cells.seq_rm(0, 10, -1), InvalidRange, "forgotten the positions below 12", "back to 10");
  CHECK_EQ(cells.seq_len(0), 20);
  cells.seq_rm(0, 15, -1);
  CHECK_EQ(cells.seq_len(0), 15);
  window.step({0});
  CHECK_EQ(cells.seq_len(0), 16);
  cells.seq_rm(0, 0, -1);
  CHECK_EQ(cells.used(), 0);
}

void a_fork_shares_the_window() {
  Fed window("window:8");
  for (int i = 0; i < 12; ++i) window.step({0});
  auto& cells = *window.built.cells;
  cells.seq_cp(0, 1, cells.seq_len(0) - kWindow);
  CHECK_EQ(cells.used(), kWindow);
  CHECK_EQ(cells.seq_len(1), 12);
  window.step({0, 1});
  CHECK_EQ(cells.used(), kWindow + 1);  // each has a last token of its own, and they share the rest
}

}  // namespace

int main() {
  auto& builders = CacheBuilderRegistry::instance();
  builders.add_backend("CPU", [](const CacheConfig& config, std::shared_ptr<StepPlanner> planner) {
    return std::make_shared<KvCache>(config, std::move(planner), nullptr);
  });
  builders.add_policy("window", [](const CacheConfig& config) { return std::make_shared<WindowCells>(config); });
  a_window_says_what_the_whole_history_says();
  a_rollback_ends_within_the_window_or_is_refused();
  a_fork_shares_the_window();
}
