// A model whose logits are a hash of the tokens that a row can see. It keeps each cell's token as a byte layer keeps
// keys and values, and reads them back through the step's plan, so a mistake in the bookkeeping changes its output. A
// token under an adapter is kept, and hashed, as its key (engine/adapter_spans.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/cells.h"
#include "core/errors.h"
#include "cpp/check.h"
#include "engine/adapter_spans.h"
#include "engine/model_runner.h"
#include "engine/types.h"

namespace agentkv::testing {

using Tokens = std::vector<Token>;

inline std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Logits in [-4, 4) that depend on every token and its place.
inline void hashed_logits(std::span<const Token> history, std::span<float> row) {
  std::uint64_t h = 0x9E3779B97F4A7C15u;
  for (const Token token : history) h = mixed(h * 31 + static_cast<std::uint64_t>(token) + 1);
  for (std::size_t v = 0; v < row.size(); ++v) {
    row[v] = static_cast<float>(mixed(h + v) >> 40) * 0x1p-21f - 4.0f;
  }
}

// Calls visit(cell, position) for what a row sees, in position order.
template <class Visit>
void for_each_visible(const StepPlan& plan, std::size_t row, Visit visit) {
  for (const Run& run : plan.view(plan.row_view[row])) {
    for (Cell i = 0; i < run.length && run.position + i <= plan.row_limit[row]; ++i)
      visit(run.cell + i, run.position + i);
  }
  for (const Run& run : plan.tail(static_cast<std::int32_t>(row))) {
    for (Cell i = 0; i < run.length; ++i) visit(run.cell + i, run.position + i);
  }
}

class ReferenceRunner final : public ModelRunner {
 public:
  ReferenceRunner(std::shared_ptr<Cells> cells, RunnerInfo info)
      : info_(info), cells_(std::move(cells)), memory_(static_cast<std::size_t>(cells_->capacity())) {
    cells_->set_mover([this](std::span<const Cell> src, std::span<const Cell> dst) {
      for (std::size_t i = 0; i < src.size(); ++i) {
        memory_[static_cast<std::size_t>(dst[i])] = memory_[static_cast<std::size_t>(src[i])];
      }
    });
  }
  ~ReferenceRunner() override { cells_->set_mover(nullptr); }

  const RunnerInfo& info() const override { return info_; }
  AdapterId adapters() const override { return n_adapters; }
  void set_adapters(std::span<const AdapterId> rows) override { adapters_.assign(rows.begin(), rows.end()); }

  std::span<const float> forward(std::span<const std::int64_t> tokens, std::span<const std::int64_t> positions,
                                 std::span<const std::int64_t> logits_indices) override {
    CHECK_EQ(tokens.size(), positions.size());
    const std::vector<AdapterId> adapters = std::exchange(adapters_, {});
    CHECK(adapters.empty() || adapters.size() == tokens.size());
    CHECK(!tokens.empty() && tokens.size() <= static_cast<std::size_t>(info_.max_tokens));
    CHECK(logits_indices.size() <= static_cast<std::size_t>(info_.max_logits));
    ++calls;
    rows.push_back(tokens.size());
    for (const std::int64_t position : positions) last_position = std::max(last_position, position);
    const StepPlan& plan = cells_->plan(positions, 0);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const Token key =
          CacheKeys(info_.vocab_size).of(static_cast<Token>(tokens[i]), adapters.empty() ? 0 : adapters[i]);
      memory_[static_cast<std::size_t>(plan.write_cells[i])] = {key, plan.positions[i]};
    }
    if (fault) fault(tokens);
    logits_.resize(logits_indices.size() * static_cast<std::size_t>(info_.vocab_size));
    std::size_t out = 0;
    for (const std::int64_t row : logits_indices) {
      const Tokens history = visible(plan, static_cast<std::size_t>(row));
      const auto vocab = static_cast<std::size_t>(info_.vocab_size);
      model(history, std::span(logits_).subspan(out, vocab));
      out += vocab;
    }
    return logits_;
  }

  // The tokens of a sequence as the cache holds them.
  Tokens cached(SeqId seq) const {
    Tokens tokens;
    for (const Run& run : cells_->seq_runs(seq)) {
      for (Cell i = 0; i < run.length; ++i) tokens.push_back(read(run.cell + i, run.position + i));
    }
    return tokens;
  }

  struct Entry {
    Token token = -1;
    Pos position = -1;

    bool operator==(const Entry&) const = default;
  };

  // What is in a cell, as a byte layer reads and writes it.
  Entry& cell(Cell cell) { return memory_[static_cast<std::size_t>(cell)]; }

  std::function<void(std::span<const Token>, std::span<float>)> model = hashed_logits;
  std::function<void(std::span<const std::int64_t>)> fault;  // may throw in the middle of a forward
  int calls = 0;
  AdapterId n_adapters = 0;
  std::int64_t last_position = -1;  // that any row was at
  std::vector<std::size_t> rows;    // per call

 private:
  Token read(Cell cell, Pos position) const {
    const Entry& entry = memory_[static_cast<std::size_t>(cell)];
    CHECK_EQ(entry.position, position);
    return entry.token;
  }

  Tokens visible(const StepPlan& plan, std::size_t row) const {
    Tokens history;
    for_each_visible(plan, row, [&](Cell cell, Pos position) {
      CHECK_EQ(static_cast<Pos>(history.size()), position);
      history.push_back(read(cell, position));
    });
    CHECK_EQ(static_cast<Pos>(history.size()), plan.positions[row] + 1);
    return history;
  }

  const RunnerInfo info_;
  const std::shared_ptr<Cells> cells_;
  std::vector<Entry> memory_;
  std::vector<float> logits_;
  std::vector<AdapterId> adapters_;
};

}  // namespace agentkv::testing
