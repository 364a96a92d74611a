#include "core/step_state.h"

#include <limits>

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {

void StepState::check_closed(const char* verb) const {
  if (open()) throw InvalidStep(error_text(verb, " inside an open step; commit_step or abort_step first"));
}

void StepState::check_can_commit() const {
  if (stage_ == Stage::Idle) throw InvalidStep("commit_step without an open step; begin_step first");
  if (stage_ == Stage::Begun) throw InvalidStep("commit_step before the forward of the step planned it");
}

void StepState::check_fed(std::span<const std::int64_t> fed, std::span<const Pos> expected) const {
  if (!open()) throw InvalidStep("forward without an open step; begin_step first");
  if (fed.size() != expected.size()) {
    throw InvalidStep(error_text("the program was fed ", fed.size(), " positions; the step has ", expected.size()));
  }
  for (std::size_t row = 0; row < fed.size(); ++row) {
    if (fed[row] != expected[row]) {
      throw InvalidStep(error_text("row ", row, " was fed position ", fed[row], "; the step expects ", expected[row]));
    }
  }
}

void check_step_size(std::int64_t rows, Cell free, Cell capacity) {
  if (rows < 1) throw InvalidStep(error_text("a step of ", rows, " rows; it must have at least 1"));
  if (rows > free) {
    throw CacheFull(
        error_text("a step of ", rows, " rows needs as many free cells; ", free, " of ", capacity, " are free"));
  }
}

void check_step_positions(Pos length, std::int64_t rows) {
  const Pos last = std::numeric_limits<Pos>::max() - 1;
  if (rows > last - length) {
    throw InvalidRange(error_text(rows, " rows after position ", length, " pass the last position ", last));
  }
}

}  // namespace agentkv
