// A model of several layers whose keys and values are hashes of what a row sees in the layer below, within a window. So
// a cell says, as real ones do, what its token saw when it was computed; and whoever reads a cell that is not what it
// should be says something else.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/coverage.h"
#include "engine/reference_runner.h"

namespace agentkv::testing {

inline constexpr std::size_t kLayers = 3;

using Values = std::array<std::uint64_t, kLayers>;  // of one token, by layer

// A position that a row at `position` sees.
inline bool within(Pos at, Pos position, const Window& window) {
  return window.length == 0 || at > position - window.length || at < window.sinks;
}

inline std::uint64_t first_value(Token token, Pos position) {
  return mixed(static_cast<std::uint64_t>(token) * 1000003 + static_cast<std::uint64_t>(position) + 1);
}

inline std::uint64_t attended(std::uint64_t sum, std::uint64_t value) { return mixed(sum * 31 + value + 1); }

inline std::vector<float> logits_of(std::uint64_t hidden, std::size_t vocab) {
  std::vector<float> row(vocab);
  for (std::size_t v = 0; v < vocab; ++v) row[v] = static_cast<float>(mixed(hidden + v) >> 40) * 0x1p-21f - 4.0f;
  return row;
}

// The logits after a history some of whose positions were forgotten, by itself.
inline std::vector<float> deep_logits(const Tokens& log, const std::vector<Forgotten>& forgotten, const Window& window,
                                      std::size_t vocab) {
  std::vector<Values> values(log.size());
  std::uint64_t hidden = 0;
  for (Pos p = 0; p < static_cast<Pos>(log.size()); ++p) {
    hidden = first_value(log[static_cast<std::size_t>(p)], p);
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      values[static_cast<std::size_t>(p)][layer] = hidden;
      std::uint64_t sum = hidden;
      for (Pos at = 0; at <= p; ++at) {
        bool seen = within(at, p, window);
        for (const Forgotten& gone : forgotten) {
          if (p >= gone.at - 1 && gone.first <= at && at < gone.last) seen = false;
        }
        if (seen) sum = attended(sum, values[static_cast<std::size_t>(at)][layer]);
      }
      hidden = sum;
    }
  }
  return logits_of(hidden, vocab);
}

class DeepRunner final : public ModelRunner {
 public:
  DeepRunner(std::shared_ptr<Cells> cells, RunnerInfo info, Window window)
      : info_(info), cells_(std::move(cells)), window_(window), memory_(static_cast<std::size_t>(cells_->capacity())) {
    cells_->set_mover([this](std::span<const Cell> src, std::span<const Cell> dst) {
      for (std::size_t i = 0; i < src.size(); ++i) at(dst[i]) = at(src[i]);
    });
  }
  ~DeepRunner() override { cells_->set_mover(nullptr); }

  const RunnerInfo& info() const override { return info_; }

  std::span<const float> forward(std::span<const std::int64_t> tokens, std::span<const std::int64_t> positions,
                                 std::span<const std::int64_t> logits_indices) override {
    const StepPlan& plan = cells_->plan(positions, 0);
    std::vector<std::uint64_t> hidden(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      hidden[i] = first_value(static_cast<Token>(tokens[i]), plan.positions[i]);
    }
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      for (std::size_t i = 0; i < tokens.size(); ++i) at(plan.write_cells[i])[layer] = hidden[i];
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const Pos position = plan.positions[i];
        for_each_visible(plan, i, [&](Cell cell, Pos seen) {
          if (within(seen, position, window_)) hidden[i] = attended(hidden[i], at(cell)[layer]);
        });
      }
    }
    if (fails && fails()) throw ForwardFailed("chance");
    const auto vocab = static_cast<std::size_t>(info_.vocab_size);
    logits_.clear();
    for (const std::int64_t row : logits_indices) {
      const auto own = logits_of(hidden[static_cast<std::size_t>(row)], vocab);
      logits_.insert(logits_.end(), own.begin(), own.end());
    }
    return logits_;
  }

  std::function<bool()> fails;

 private:
  Values& at(Cell cell) { return memory_[static_cast<std::size_t>(cell)]; }

  const RunnerInfo info_;
  const std::shared_ptr<Cells> cells_;
  const Window window_;
  std::vector<Values> memory_;
  std::vector<float> logits_;
};

}  // namespace agentkv::testing
