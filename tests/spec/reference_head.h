// A draft head whose outputs are a hash of the entries (token and hidden row) that a row can see, kept per cell and
// read back through the step's plan.
#pragma once

#include <bit>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "core/cells.h"
#include "engine/reference_runner.h"
#include "spec/head_runner.h"

namespace agentkv::testing {

using Row = std::vector<float>;

struct Entry {
  Token token = -1;
  Row hidden;
  bool operator==(const Entry&) const = default;
};

inline Row hashed_row(std::uint64_t hash, std::size_t size) {
  Row row(size);
  for (std::size_t i = 0; i < size; ++i) row[i] = static_cast<float>(mixed(hash + i) >> 40) * 0x1p-21f - 4.0f;
  return row;
}

inline std::uint64_t hash_of(std::span<const float> row, std::uint64_t h = 1) {
  for (const float x : row) h = mixed(h * 31 + std::bit_cast<std::uint32_t>(x));
  return h;
}

class ReferenceHead final : public HeadRunner {
 public:
  ReferenceHead(std::shared_ptr<Cells> cells, HeadInfo info)
      : info_(info), cells_(std::move(cells)), memory_(static_cast<std::size_t>(cells_->capacity())) {}

  const HeadInfo& info() const override { return info_; }

  Row fused(std::span<const float> features) const { return hashed_row(hash_of(features), width()); }

  void fuse(std::span<const float> features, std::span<float> hidden) override {
    ++fuses;
    const auto f = static_cast<std::size_t>(info_.feature_dim);
    CHECK_EQ(features.size() % f, 0u);
    CHECK(hidden.size() == features.size() / f * width());
    for (std::size_t i = 0; i * f < features.size(); ++i) {
      const Row row = fused(features.subspan(i * f, f));
      given_out.insert(hash_of(row));
      std::copy(row.begin(), row.end(), hidden.begin() + static_cast<std::ptrdiff_t>(i * width()));
    }
  }

  // What the head makes of entries without a cache: logits, then hidden_out.
  std::pair<Row, Row> model(std::span<const Entry> entries) const {
    std::uint64_t h = 7;
    for (const Entry& entry : entries) h = mixed(hash_of(entry.hidden, h) + static_cast<std::uint64_t>(entry.token));
    return {hashed_row(h, static_cast<std::size_t>(info_.vocab_size)), hashed_row(h ^ 0xABCDEF, width())};
  }

  HeadRows forward(std::span<const std::int64_t> tokens, std::span<const std::int64_t> positions,
                   std::span<const float> hidden, std::span<const std::int64_t> logits_indices) override {
    CHECK(!tokens.empty() && tokens.size() <= static_cast<std::size_t>(info_.max_tokens));
    CHECK(logits_indices.size() <= static_cast<std::size_t>(info_.max_logits));
    CHECK(hidden.size() == tokens.size() * width());
    ++calls;
    const StepPlan& plan = cells_->plan(positions, 0);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto row = hidden.subspan(i * width(), width());
      memory_[static_cast<std::size_t>(plan.write_cells[i])] = {static_cast<Token>(tokens[i]),
                                                                {row.begin(), row.end()}};
    }
    if (fault) fault();
    logits_.clear();
    hidden_.clear();
    for (const std::int64_t index : logits_indices) {
      std::vector<Entry> seen;
      for_each_visible(plan, static_cast<std::size_t>(index), [&](Cell cell, Pos position) {
        CHECK_EQ(static_cast<Pos>(seen.size()), position);
        seen.push_back(memory_[static_cast<std::size_t>(cell)]);
      });
      const auto [logits, out] = model(seen);
      logits_.insert(logits_.end(), logits.begin(), logits.end());
      hidden_.insert(hidden_.end(), out.begin(), out.end());
    }
    return {logits_, hidden_};
  }

  // The entries of a sequence as the cache holds them.
  std::vector<Entry> entries(SeqId seq) const {
    std::vector<Entry> held;
    for (const Run& run : cells_->seq_runs(seq)) {
      for (Cell i = 0; i < run.length; ++i) held.push_back(memory_[static_cast<std::size_t>(run.cell + i)]);
    }
    return held;
  }

  std::function<void()> fault;  // may throw in the middle of a forward
  int calls = 0;
  int fuses = 0;
  std::set<std::uint64_t> given_out;  // hashes of the rows that fuse() returned

 private:
  std::size_t width() const { return static_cast<std::size_t>(info_.hidden_dim); }

  const HeadInfo info_;
  const std::shared_ptr<Cells> cells_;
  std::vector<Entry> memory_;
  Row logits_;
  Row hidden_;
};

}  // namespace agentkv::testing
