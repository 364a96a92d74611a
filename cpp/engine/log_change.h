// How a branch's log differs from what was last told of it, for those who keep a copy.
#pragma once

#include <vector>

#include "engine/types.h"

namespace agentkv {

struct LogChange {
  BranchId branch;
  Pos kept;                     // tokens at the front of the copy that stay
  std::vector<Token> appended;  // what follows them now
  Epoch epoch;                  // of the last token; 0 where there is none
  AdapterId adapter;            // of the next token
};

}  // namespace agentkv
