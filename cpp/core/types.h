// The integers that the whole cache speaks in.
#pragma once

#include <cstdint>

namespace agentkv {

using Cell = std::int32_t;   // index of one K/V row in a pool
using Pos = std::int32_t;    // position of a token in its sequence, from 0
using SeqId = std::int32_t;  // live sequence, 0 <= id < max_sequences

inline constexpr SeqId kDefaultMaxSequences = 256;

// Tokens at positions [position, position + length) lie in cells [cell, cell + length).
struct Run {
  Pos position;
  Cell cell;
  Cell length;

  bool operator==(const Run&) const = default;
};

// Positions [from, from + length) of one sequence that are [to, to + length) of another.
struct Piece {
  Pos from;
  Pos to;
  Pos length;

  bool operator==(const Piece&) const = default;
};

}  // namespace agentkv
