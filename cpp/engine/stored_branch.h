// A branch as it is kept outside of the cache.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"
#include "engine/branch_state.h"
#include "engine/output.h"
#include "engine/types.h"

namespace agentkv {

struct StoredBranch {
  std::vector<Token> log = {};
  std::vector<Piece> rows = {};  // from which row of its hold each position has its K and V, as far as it has
  std::vector<Forgotten> forgotten = {};
  AdapterSpans adapters = {};
  Pos exact_from = 0;
  std::uint64_t rng_stream = 0;
  std::uint32_t forks = 0;
  std::vector<float> next_logits = {};  // [vocab_size] after the log; empty where they are not known
  Output output = {};
};

}  // namespace agentkv
