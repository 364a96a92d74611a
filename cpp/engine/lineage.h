// Which history a branch has, told by a number.
#pragma once

#include <vector>

#include "engine/types.h"

namespace agentkv {

// Tokens that one branch wrote one after another, with nothing taken away between them, share an epoch, and no other
// tokens of the engine have it. So a length and the epoch of the token before it name a history: whoever kept the two
// can tell, without a look at tokens, whether a branch still has it.
class Lineage {
 public:
  // The epoch of the token before `length`; 0 where there is none.
  Epoch at(Pos length) const;

  // The first `length` tokens stay as they are; what follows is of epoch `next`.
  void cut(Pos length, Epoch next);

  // The first `length` tokens stay as they are; what follows is as the other has it.
  void go_on_as(const Lineage& other, Pos length);

 private:
  struct Stretch {
    Pos from;
    Epoch epoch;
  };

  std::vector<Stretch> stretches_;  // in their order; each ends where the next begins
};

}  // namespace agentkv
