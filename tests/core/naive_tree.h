// The tree bookkeeping by what it must preserve: every token is an id, a sequence is positions of ids, and a cell is
// known by the id whose bytes lie in it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "core/types.h"

namespace agentkv::testing {

using Id = std::int32_t;

struct NaiveTree {
  struct Node {
    std::int32_t parent;
    Id id;  // -1 until a step gave it a cell
  };
  struct Sequence {
    std::map<Pos, Id> tokens;
    std::vector<Node> nodes;

    Pos end = 0;  // what was removed at the end shortens it, a hole does not

    Pos length() const { return end; }
    std::int32_t live() const {
      std::int32_t n = 0;
      for (const Node& node : nodes) n += node.id >= 0;
      return n;
    }
    std::int32_t proposed() const { return static_cast<std::int32_t>(nodes.size()) - live(); }
    Pos depth(std::int32_t node) const {
      const std::int32_t parent = nodes[static_cast<std::size_t>(node)].parent;
      return parent < 0 ? 0 : depth(parent) + 1;
    }
  };

  explicit NaiveTree(SeqId n) : sequences(static_cast<std::size_t>(n)) {}

  Sequence& at(SeqId seq) { return sequences[static_cast<std::size_t>(seq)]; }

  // Owners of every id that a cell is kept for; a draft node counts for its sequence.
  std::map<Id, std::int32_t> owners() const {
    std::map<Id, std::int32_t> out;
    for (const Sequence& sequence : sequences) {
      for (const auto& [position, id] : sequence.tokens) ++out[id];
      for (const Node& node : sequence.nodes) {
        if (node.id >= 0) ++out[node.id];
      }
    }
    return out;
  }

  bool in_range(SeqId seq, Pos p0, Pos p1) {
    const Pos end = at(seq).length();
    return end > 0 && 0 <= p0 && p0 <= (p1 < 0 ? end : p1) && p1 <= end;
  }

  bool copy(SeqId src, SeqId dst, Pos p0, Pos p1) {
    if (!at(dst).nodes.empty() || !in_range(src, p0, p1)) return false;
    const Pos end = p1 < 0 ? at(src).length() : p1;
    const std::map<Pos, Id> from = at(src).tokens;
    for (Pos p = p0; p < end; ++p) {
      if (at(dst).tokens.contains(p)) return false;
    }
    for (Pos p = p0; p < end; ++p) {
      if (from.contains(p)) at(dst).tokens[p] = from.at(p);
    }
    if (p0 < end) at(dst).end = std::max(at(dst).end, end);
    return true;
  }

  bool remove(SeqId seq, Pos p0, Pos p1) {
    Sequence& sequence = at(seq);
    if (sequence.end == 0 && !sequence.nodes.empty() && p0 == 0 && p1 <= 0) {
      sequence.nodes.clear();
      return true;
    }
    if (!in_range(seq, p0, p1)) return false;
    const Pos length = sequence.length();
    for (Pos p = p0; p < (p1 < 0 ? length : p1); ++p) sequence.tokens.erase(p);
    if (p1 < 0 || p1 == length) sequence.end = p0;
    if (sequence.length() < length) sequence.nodes.clear();
    return true;
  }

  bool keep(SeqId seq) {
    if (at(seq).end == 0) return false;
    const Sequence kept = at(seq);
    for (Sequence& sequence : sequences) sequence = {};
    at(seq) = kept;
    return true;
  }

  bool propose(SeqId seq, const std::vector<std::int32_t>& parents) {
    const auto first = static_cast<std::int32_t>(at(seq).nodes.size());
    for (std::size_t i = 0; i < parents.size(); ++i) {
      if (parents[i] < -1 || parents[i] >= first + static_cast<std::int32_t>(i)) return false;
    }
    for (const std::int32_t parent : parents) at(seq).nodes.push_back({parent, -1});
    return !parents.empty();
  }

  void withdraw() {
    for (Sequence& sequence : sequences) sequence.nodes.resize(static_cast<std::size_t>(sequence.live()));
  }

  bool commit(SeqId seq, const std::vector<std::int32_t>& accepted) {
    Sequence& sequence = at(seq);
    if (!accepted.empty() && sequence.proposed() > 0) return false;
    std::int32_t above = -1;
    for (const std::int32_t node : accepted) {
      if (node < 0 || node >= sequence.live() || sequence.nodes[static_cast<std::size_t>(node)].parent != above) {
        return false;
      }
      above = node;
    }
    Pos position = sequence.length();
    for (const std::int32_t node : accepted) {
      sequence.tokens[position++] = sequence.nodes[static_cast<std::size_t>(node)].id;
    }
    sequence.end = position;
    sequence.nodes.clear();
    return true;
  }

  // Position -> id of what a plain token at the end, or a node, sees of its own sequence.
  std::map<Pos, Id> seen_by_node(SeqId seq, std::int32_t node) {
    Sequence& sequence = at(seq);
    std::map<Pos, Id> seen = sequence.tokens;
    for (std::int32_t n = node; n >= 0; n = sequence.nodes[static_cast<std::size_t>(n)].parent) {
      seen[sequence.length() + sequence.depth(n)] = sequence.nodes[static_cast<std::size_t>(n)].id;
    }
    return seen;
  }

  std::vector<Sequence> sequences;
};

}  // namespace agentkv::testing
