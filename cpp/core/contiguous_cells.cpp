#include "core/contiguous_cells.h"

#include "core/errors.h"
#include "core/message.h"
#include "core/plan_builder.h"

namespace agentkv {

ContiguousCells::ContiguousCells(Cell capacity) : capacity_(capacity) {
  if (capacity < 1) throw InvalidRange(error_text("capacity is ", capacity, "; it must be at least 1 cell"));
}

void ContiguousCells::clear() {
  step_.check_closed("clear");
  length_ = 0;
}

void ContiguousCells::begin_step(std::int32_t n) {
  step_.check_closed("begin_step");
  check_step_size(n, capacity_ - length_, capacity_);
  plan_.positions.resize(static_cast<std::size_t>(n));
  Pos position = length_;
  for (Pos& p : plan_.positions) p = position++;
  step_.begin();
}

const StepPlan& ContiguousCells::plan(std::span<const std::int64_t> position) {
  step_.check_fed(position, plan_.positions);
  if (!step_.planned()) {
    PlanBuilder builder(plan_);
    plan_.write_cells.assign(plan_.positions.begin(), plan_.positions.end());
    const Run held{0, 0, length_};
    builder.begin_view(std::span<const Run>(&held, length_ > 0 ? 1 : 0), 1);
    for (std::int32_t row = 0; row < plan_.n_tokens(); ++row) builder.add_plain_row(row);
    builder.finish();
    step_.set_planned();
  }
  return plan_;
}

void ContiguousCells::commit_step() {
  step_.check_can_commit();
  length_ += plan_.n_tokens();
  step_.end();
}

std::span<const Pos> ContiguousCells::step_positions() const {
  return step_.open() ? std::span<const Pos>(plan_.positions) : std::span<const Pos>();
}

void ContiguousCells::rewind(Pos length) {
  step_.check_closed("rewind");
  if (length < 0 || length > length_) {
    throw InvalidRange(error_text("rewind to length ", length, "; it must be in [0, ", length_, "]"));
  }
  length_ = length;
}

}  // namespace agentkv
