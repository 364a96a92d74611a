// The contiguous bookkeeping: one sequence, position p in cell p. All of its state is a length.
#pragma once

#include <span>

#include "core/faces.h"
#include "core/step_state.h"

namespace agentkv {

class ContiguousCells final : public ContiguousCache, public StepPlanner {
 public:
  explicit ContiguousCells(Cell capacity);

  bool can_extend(std::int64_t n) const override { return n >= 0 && n <= capacity_ - length_; }
  Cell capacity() const override { return capacity_; }
  Cell used() const override { return length_; }
  void clear() override;

  void begin_step(std::int32_t n) override;
  const StepPlan& plan(std::span<const std::int64_t> position) override;
  void commit_step() override;
  void abort_step() noexcept override { step_.end(); }
  std::span<const Pos> step_positions() const override;

  Pos length() const override { return length_; }
  void rewind(Pos length) override;

 private:
  Cell capacity_;
  Pos length_ = 0;
  StepState step_;
  StepPlan plan_;
};

}  // namespace agentkv
