// A draft tree while it grows, level by level: every token that a model found likely after a node that it ran.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft.h"
#include "spec/likely_tokens.h"

namespace agentkv {

// Nodes are numbered in the order of their arrival. A node's reach is the product of the probabilities on its path: how
// likely the target gets there, if the drafting model's probabilities are right.
class DraftTree {
 public:
  void clear();
  std::int32_t size() const { return static_cast<std::int32_t>(nodes_.size()); }

  // Adds children of `parent`, a node that ran, or -1 for the branch's last token. `row` is the caller's: which of its
  // rows said so. Tokens below target_of.size() are translated by it where it is not empty.
  void grow(std::int32_t parent, std::int32_t row, std::span<const LikelyToken> children,
            std::span<const Token> target_of = {});

  // Chooses, of the nodes that came since the last call, the `width` with the greatest reach to be run next, but none
  // below min_reach, and none at all where their reaches sum to less than min_sum; counts them as run in this order.
  // Valid until the next call.
  std::span<const std::int32_t> choose(std::int32_t width, float min_reach, float min_sum);

  Token token(std::int32_t node) const { return at(node).token; }
  std::int32_t row(std::int32_t node) const { return at(node).row; }
  // The node's index among those that ran, which is its place in a cache's frontier. -1 for the branch's last token.
  std::int32_t place(std::int32_t node) const { return node < 0 ? -1 : at(node).place; }
  std::int32_t parent_place(std::int32_t node) const { return place(at(node).parent); }

  // The child of `parent` that is `token` and ran; -1 when there is none.
  std::int32_t child_that_ran(std::int32_t parent, Token token) const;

  // The max_nodes nodes with the greatest reach, best first, so that parents come before their children.
  void best(std::int32_t max_nodes, Draft& draft);

 private:
  struct Node {
    Token token;
    std::int32_t parent;
    std::int32_t row;
    std::int32_t place;
    float confidence;
    float reach;
  };

  const Node& at(std::int32_t node) const { return nodes_[static_cast<std::size_t>(node)]; }
  // Puts the `count` best of the nodes [first, size()) into order_.
  void rank(std::int32_t first, std::int32_t count);

  std::vector<Node> nodes_;
  std::vector<std::int32_t> ran_;    // nodes by their place
  std::int32_t fresh_ = 0;           // nodes from here on came since the last choice
  std::vector<std::int32_t> order_;  // scratch
  std::vector<std::int32_t> index_;  // scratch: of a node in the draft
};

}  // namespace agentkv
