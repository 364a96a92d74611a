// The draft nodes that ride for a generation under a constraint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/draft.h"

namespace agentkv {

// First the tokens that the constraint forces, one under the other; then those of a drafter's guess that it allows and
// that are not forced anyway.
class ConstrainedDraft {
 public:
  ConstrainedDraft() = default;
  // allowed: nodes of `guess`, ascending. Keeps at most `most_guessed` of them.
  ConstrainedDraft(std::span<const Token> forced, const Draft* guess, std::span<const std::int32_t> allowed,
                   std::size_t most_guessed);

  // All nodes. What runs may be cut to fewer, from the end.
  Draft draft = {};

  std::size_t forced() const { return n_forced_; }  // before any cut
  // What is left of the guess, as its drafter learns of it: forced tokens left out, so that their children follow what
  // they follow.
  Draft guessed() const;
  // Of a chain of nodes from a root down, those of guessed(), under its indices.
  std::vector<std::int32_t> guessed_of(std::span<const std::int32_t> chain) const;

 private:
  void add(const Draft& guess, std::size_t node, std::int32_t parent);

  std::size_t n_forced_ = 0;
};

}  // namespace agentkv
