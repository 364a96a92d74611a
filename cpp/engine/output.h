// What a branch was last asked to say under a constraint.
#pragma once

#include <memory>

#include "engine/constraint.h"
#include "engine/types.h"

namespace agentkv {

// log[began, end). A generation that ends early leaves it open, and another one under the same constraint goes on with
// it. Tokens that others put behind it close it, and a rollback to its end, or into it, opens it again.
struct Output {
  std::shared_ptr<Constraint> constraint = {};
  Pos began = 0;
  Pos end = 0;
  bool complete = false;

  bool goes_on(const std::shared_ptr<Constraint>& under, Pos length) const {
    return constraint == under && end == length && !complete;
  }

  void roll_back(Pos length) {
    if (length <= began) {
      *this = {};
    } else if (length < end) {
      end = length;
      complete = false;
    }
  }
};

}  // namespace agentkv
