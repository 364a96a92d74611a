// The questions of a seq face, answered from a SeqTable: what every seq bookkeeping has in common.
#pragma once

#include <span>

#include "core/faces.h"
#include "core/seq_table.h"
#include "core/step_state.h"

namespace agentkv {

template <class Face>
class OverTable : public Face {
 public:
  OverTable(Cell capacity, SeqId max_sequences) : table_(capacity, max_sequences) {}

  bool can_extend(std::int64_t n) const override { return n >= 0 && n <= table_.pool().free(); }
  Cell capacity() const override { return table_.pool().capacity(); }
  Cell used() const override { return table_.pool().used(); }
  Cell shared() const override { return table_.pool().shared(); }
  Cell read_window() const override { return table_.pool().window(); }

  Pos seq_len(SeqId seq) const override { return table_.length(seq); }
  SeqId max_sequences() const override { return table_.max_sequences(); }
  SeqId live_sequences() const override { return table_.live_sequences(); }
  std::span<const Run> seq_runs(SeqId seq) const override { return table_.runs(seq); }

  std::span<const Pos> step_positions() const override {
    return step_.open() ? std::span<const Pos>(plan_.positions) : std::span<const Pos>();
  }

 protected:
  SeqTable table_;
  StepState step_;
  StepPlan plan_;  // positions from begin_step, the rest from the first plan; nothing of it is in table_ before commit
};

}  // namespace agentkv
