// What the tests of drafters that guess from earlier text have in common.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpp/check.h"
#include "engine/drafter.h"

namespace agentkv::testing {

using Tokens = std::vector<Token>;

// A drafter's draft for a branch with that history, which is one that an engine takes.
inline Draft propose(Drafter& drafter, BranchId branch, const Tokens& history, std::int32_t max_nodes = 64,
                     std::int32_t max_depth = 64, const Tokens& forced = {}) {
  DraftRequest request{
      .branch = branch, .history = history, .forced = forced, .max_nodes = max_nodes, .max_depth = max_depth};
  drafter.propose({&request, 1});
  check_draft(request.draft, 1 << 20);
  CHECK_EQ(request.draft.confidence.size(), request.draft.size());
  CHECK(static_cast<std::int32_t>(request.draft.size()) <= max_nodes);
  CHECK(request.draft.depth() <= max_depth);
  return request.draft;
}

inline void write(Drafter& drafter, BranchId branch, Pos first, const Tokens& tokens) {
  drafter.observe(branch, first, tokens, {});
}

// How many of their last tokens agree, up to `most`.
inline std::int32_t agree(const Tokens& one, const Tokens& other, std::int32_t most) {
  const std::size_t longest = std::min({one.size(), other.size(), static_cast<std::size_t>(most)});
  std::size_t length = 0;
  while (length < longest && one[one.size() - 1 - length] == other[other.size() - 1 - length]) ++length;
  return static_cast<std::int32_t>(length);
}

}  // namespace agentkv::testing
