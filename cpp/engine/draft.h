// A tree of tokens that may follow a branch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/types.h"

namespace agentkv {

struct Draft {
  std::vector<Token> tokens;          // [n]
  std::vector<std::int32_t> parents;  // [n] the index of an earlier node, or -1: follows the branch's last token
  // [n] how likely a node is accepted where its parent is, in (0, 1]; empty where the drafter cannot say. As it is
  // verified, 1 only where a constraint forces the node.
  std::vector<float> confidence;

  std::size_t size() const { return tokens.size(); }
  bool empty() const { return tokens.empty(); }
  void cut(std::size_t n);                                 // keeps the first n nodes
  std::int32_t depth() const;                              // levels below the branch's last token
  void node_depths(std::vector<std::int32_t>& out) const;  // [n] the level of each node, from 1
  // The node that follows `parent` (-1: the branch's last token) with this token, or -1.
  std::int32_t child(std::int32_t parent, Token token) const;
  // [n] how likely each node is accepted, its ancestors included; for a draft with confidence.
  void path_probabilities(std::vector<float>& out) const;
  // [depth] how likely each level is reached.
  std::vector<double> level_probabilities() const;
  bool is_forced(std::size_t node) const { return !confidence.empty() && confidence[node] == 1; }
  // The part of it that follows these tokens.
  Draft beyond(std::span<const Token> path) const;
};

// Throws InvalidDraft unless the vectors fit each other, parents come first, no two children of a node are the same
// token, and every token is in the vocabulary.
void check_draft(const Draft& draft, std::int32_t vocab_size);

}  // namespace agentkv
