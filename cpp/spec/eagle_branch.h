// The state of one branch in an EAGLE drafter.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "engine/sequences.h"
#include "engine/types.h"
#include "spec/draft_tree.h"

namespace agentkv {

// Tokens that the target ran, from position `offset` on, and the features of the last of them: those of tokens
// [first_row(), n()). Entry i of the head's cache is made of token i + 1 and the features of token i, so an entry needs
// a token more than the features; the last one can be made once it is known which token comes next.
struct EagleBranch {
  SequenceLease seq;
  Pos offset = 0;
  std::vector<Token> tokens;    // [n]
  std::vector<float> features;  // [n_rows, width]
  Token next = -1;              // what entry n - 1 was made with, where there is one
  DraftTree tree;               // of the round

  Pos n() const { return static_cast<Pos>(tokens.size()); }
  Pos n_rows(std::size_t width) const { return static_cast<Pos>(features.size() / width); }
  Pos first_row(std::size_t width) const { return n() - n_rows(width); }
  // What follows token i, as entry i says.
  Token token_after(Pos i) const { return i + 1 < n() ? tokens[static_cast<std::size_t>(i) + 1] : next; }
  std::span<const float> rows(Pos from, Pos to, std::size_t width) const {
    const auto begin = static_cast<std::size_t>(from - first_row(width));
    return std::span(features).subspan(begin * width, static_cast<std::size_t>(to - from) * width);
  }

  void restart(Pos position) {
    offset = position;
    tokens.clear();
    features.clear();
  }

  // Keeps the first `length` tokens.
  void truncate(Pos length, std::size_t width) {
    const Pos rows = std::max(length - first_row(width), 0);
    features.resize(std::min(features.size(), static_cast<std::size_t>(rows) * width));
    tokens.resize(static_cast<std::size_t>(length));
  }

  // Forgets features below `first`, all but the last row: that one is needed again where another token comes next.
  void forget_rows(Pos first, std::size_t width) {
    const Pos drop = std::min(first, n() - 1) - first_row(width);
    if (drop > 0)
      features.erase(features.begin(),
                     features.begin() + static_cast<std::ptrdiff_t>(drop) * static_cast<std::ptrdiff_t>(width));
  }
};

}  // namespace agentkv
