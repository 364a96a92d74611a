// The seq bookkeeping: sequences share cells, and a step extends any of them.
#pragma once

#include <span>

#include "core/over_table.h"
#include "core/step_rows.h"

namespace agentkv {

class SeqCells final : public OverTable<SeqCache>, public StepPlanner {
 public:
  explicit SeqCells(Cell capacity, SeqId max_sequences = kDefaultMaxSequences)
      : OverTable(capacity, max_sequences), rows_(max_sequences) {}

  void clear() override;

  void begin_step(std::span<const SeqId> seq_ids) override;
  const StepPlan& plan(std::span<const std::int64_t> position) override;
  void commit_step() override;
  void abort_step() noexcept override { step_.end(); }

  void seq_cp(SeqId src, SeqId dst, Pos p0 = 0, Pos p1 = -1) override;
  void seq_rm(SeqId seq, Pos p0 = 0, Pos p1 = -1) override;
  void seq_keep(SeqId seq) override;

 private:
  void build_plan();

  StepRows rows_;
};

}  // namespace agentkv
