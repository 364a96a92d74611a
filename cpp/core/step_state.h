// Where the transaction of a step stands, and the refusals that every bookkeeping shares.
#pragma once

#include <cstdint>
#include <span>

#include "core/types.h"

namespace agentkv {

class StepState {
 public:
  bool open() const { return stage_ != Stage::Idle; }
  bool planned() const { return stage_ == Stage::Planned; }

  void begin() { stage_ = Stage::Begun; }
  void set_planned() { stage_ = Stage::Planned; }
  void end() { stage_ = Stage::Idle; }

  void check_closed(const char* verb) const;  // throws InvalidStep inside a step
  void check_can_commit() const;              // throws InvalidStep without a step, or before its forward
  // Throws InvalidStep without a step, or when the program was fed other positions than the step has.
  void check_fed(std::span<const std::int64_t> fed, std::span<const Pos> expected) const;

 private:
  enum class Stage { Idle, Begun, Planned };

  Stage stage_ = Stage::Idle;
};

// Throws InvalidStep for a step of no rows, CacheFull for more rows than free cells.
void check_step_size(std::int64_t rows, Cell free, Cell capacity);

// Throws InvalidRange when `rows` more positions after `length` do not fit Pos.
void check_step_positions(Pos length, std::int64_t rows);

}  // namespace agentkv
