// A model of several layers whose keys and values are hashes of what a row sees in the layer below, within a window. So
// a cell says, as real ones do, what its token saw when it was computed; and whoever reads a cell that is not what it
// should be says something else.
#pragma once

#include <algorithm>
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

// A position that a row at `position` sees in a layer. The first layers have the windows of groups.
inline bool within(Pos at, Pos position, const Window& window, std::size_t layer) {
  if (layer < window.groups.size()) return at > position - window.groups[layer];
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
        bool seen = within(at, p, window, layer);
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

// The values of cells. What is discarded is something else at once.
class DeepLayer final : public ByteLayer {
 public:
  explicit DeepLayer(Cell capacity) : memory_(static_cast<std::size_t>(capacity)) {}

  Values& at(Cell cell) { return memory_[static_cast<std::size_t>(cell)]; }

  std::string_view backend_id() const override { return "deep"; }
  std::size_t bytes() const override { return memory_.size() * cell_bytes(); }
  Cell allocated_cells() const override { return static_cast<Cell>(memory_.size()); }
  void move_cells(const Cell* src, const Cell* dst, std::size_t n) override {
    for (std::size_t i = 0; i < n; ++i) at(dst[i]) = at(src[i]);
  }
  void discard(std::span<const Cell> cells, std::uint8_t groups) override {
    for (const Cell cell : cells) std::fill_n(at(cell).begin(), groups, ~std::uint64_t{0});
    discarded += cells.size();
  }
  std::size_t cell_bytes() const override { return sizeof(Values); }
  std::vector<CellArray> cell_arrays() const override { return {}; }
  void read_cells(std::span<const Cell>, std::span<std::byte>) const override {}
  void write_cells(std::span<const Cell>, std::span<const std::byte>) override {}

  std::size_t discarded = 0;

 private:
  std::vector<Values> memory_;
};

class DeepRunner final : public ModelRunner {
 public:
  DeepRunner(std::shared_ptr<Cells> cells, RunnerInfo info, Window window)
      : info_(info),
        cells_(std::move(cells)),
        window_(std::move(window)),
        memory_(std::make_shared<DeepLayer>(cells_->capacity())) {
    cells_->set_layer(memory_);
  }

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
          if (within(seen, position, window_, layer)) hidden[i] = attended(hidden[i], at(cell)[layer]);
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

  std::size_t discarded() const { return memory_->discarded; }

  std::function<bool()> fails;

 private:
  Values& at(Cell cell) { return memory_->at(cell); }

  const RunnerInfo info_;
  const std::shared_ptr<Cells> cells_;
  const Window window_;
  const std::shared_ptr<DeepLayer> memory_;
  std::vector<float> logits_;
};

}  // namespace agentkv::testing
