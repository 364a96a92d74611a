// The seq bookkeeping: sequences share cells, and a step extends any of them.
#pragma once

#include <span>
#include <vector>

#include "core/faces.h"
#include "core/seq_table.h"
#include "core/step_rows.h"
#include "core/step_state.h"

namespace agentkv {

class SeqCells final : public SeqCache, public StepPlanner {
 public:
  explicit SeqCells(Cell capacity, SeqId max_sequences = kDefaultMaxSequences);

  bool can_extend(std::int64_t n) const override { return n >= 0 && n <= table_.pool().free(); }
  Cell capacity() const override { return table_.pool().capacity(); }
  Cell used() const override { return table_.pool().used(); }
  void clear() override;

  void begin_step(std::span<const SeqId> seq_ids) override;
  const StepPlan& plan(std::span<const std::int64_t> position) override;
  void commit_step() override;
  void abort_step() noexcept override { step_.end(); }
  std::span<const Pos> step_positions() const override;

  void seq_cp(SeqId src, SeqId dst, Pos p0 = 0, Pos p1 = -1) override;
  void seq_rm(SeqId seq, Pos p0 = 0, Pos p1 = -1) override;
  void seq_keep(SeqId seq) override;
  Pos seq_len(SeqId seq) const override { return table_.length(seq); }
  SeqId max_sequences() const override { return table_.max_sequences(); }
  SeqId live_sequences() const override { return table_.live_sequences(); }
  std::span<const Run> seq_runs(SeqId seq) const override { return table_.runs(seq); }
  Cell shared() const override { return table_.pool().shared(); }
  Cell read_window() const override { return table_.pool().window(); }

 private:
  void build_plan();

  SeqTable table_;
  StepState step_;
  StepRows rows_;
  StepPlan plan_;  // positions from begin_step, the rest from the first plan; nothing of it is in table_ before commit
};

}  // namespace agentkv
