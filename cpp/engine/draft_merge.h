// One draft made of the guesses of several drafters, and what of a guess is in it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft.h"

namespace agentkv {

class DraftMerge {
 public:
  // paths: [nodes] how likely each node is accepted, its ancestors included. A node that several guesses have is as
  // likely as the surest of them says.
  void add(const Draft& guess, std::span<const float> paths);
  // The draft of all that was added, in this order, with how likely each node is where its parent is accepted.
  Draft take();

 private:
  Draft draft_;
  std::vector<float> paths_;
};

// The nodes of one draft whose path another one has.
Draft common(const Draft& one, const Draft& other);

// A chain of nodes of one draft, from a root down, in another one, as far as that goes.
std::vector<std::int32_t> followed(const Draft& one, std::span<const std::int32_t> chain, const Draft& other);

}  // namespace agentkv
