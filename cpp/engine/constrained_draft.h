// The draft nodes that ride for a generation under a constraint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/constraint.h"
#include "engine/draft.h"

namespace agentkv {

// First the tokens that the constraint forces, one under the other; then a guess of what follows the last of them.
class ConstrainedDraft {
 public:
  ConstrainedDraft() = default;
  explicit ConstrainedDraft(std::span<const Token> forced);

  // All nodes. What runs may be cut to fewer, from the end.
  Draft draft = {};

  std::size_t forced() const { return n_forced_; }  // before any cut
  void follow_with(const Draft& guess);             // in place of the guess before
  // Leaves the nodes that may follow, and adds those that must, down to max_depth levels.
  void grow(const DraftTurn& turn, std::int32_t max_depth);

  // What is left of the guess, as its drafter learns of it.
  Draft guessed() const;
  // Of a chain of nodes from a root down, those of guessed(), under its indices.
  std::vector<std::int32_t> guessed_of(std::span<const std::int32_t> chain) const;

 private:
  std::size_t n_forced_ = 0;
};

}  // namespace agentkv
