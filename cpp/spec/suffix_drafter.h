// Guesses that a branch goes on as the longest text that it ends with went on before, wherever that was.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "spec/text_drafter.h"

namespace agentkv {

struct SuffixOptions {
  std::int32_t max_nodes = 16;          // of a draft
  std::int64_t max_tokens = 1ll << 18;  // of text kept; the oldest is forgotten
  std::vector<Token> spellings = {};    // as of NgramIndex
};

// Suffix decoding (https://arxiv.org/abs/2411.04975) over the text of all branches and a corpus. Instead of a suffix
// tree with counts it links the occurrences of n-grams of five lengths, and counts over the newest occurrences of the
// longest one that a branch ends with: a token costs the same however much text there is, and old text can be
// forgotten.
class SuffixDrafter final : public TextDrafter {
 public:
  explicit SuffixDrafter(const SuffixOptions& options = {});  // throws InvalidDrafter

  // The draft is the tree of what followed those occurrences, its likeliest nodes first. An occurrence weighs the
  // square of the tokens that agree, the guessed ones on the path among them. A node's confidence is its part of the
  // weight of all that reach its parent, who also leave weight to what never followed: the longest agreement, for each
  // way in which they go on. So a lone occurrence with l tokens that agree has l / (l + 1).
  void propose(std::span<DraftRequest> requests) override;

  // Text of earlier processes, older than that of all branches. Call it before any branch is told of.
  void read_corpus(std::span<const Token> text);
  // What the branches brought that the index did not have, oldest first.
  std::vector<std::vector<Token>> new_text() const { return index_.new_text(first_own_); }

  const SuffixOptions& options() const { return options_; }
  std::int64_t steps() const { return index_.steps() + steps_; }  // ever: of the index, and followed occurrences

 private:
  struct Node {
    std::int32_t parent;  // of nodes_; -1 for the root, which is what the draft follows
    std::int32_t depth;
    Token token;
    float confidence;
    float path;  // product of the confidences down to the node
    // Of occurrences_: those that go on as far as this node.
    std::uint32_t begin, end;
    std::int32_t place = -1;  // in the draft
  };
  struct Occurrence {
    std::span<const Token> after;
    std::int32_t length;  // tokens that agree
    bool own;             // the branch is writing the text after it
    Token next;           // scratch
  };

  void collect(const DraftRequest& request);
  void expand(std::int32_t node);
  void add_child(std::int32_t parent, std::uint32_t begin, std::uint32_t end, double whole);
  void grow(DraftRequest& request);

  const SuffixOptions options_;
  NgramIndex::DocumentId first_own_ = 0;
  std::int64_t steps_ = 0;
  // The tree in the making.
  std::vector<NgramIndex::Match> matches_;
  std::vector<Occurrence> occurrences_;
  std::vector<Node> nodes_;
  std::vector<std::int32_t> open_;  // a heap of nodes that are not in the draft, the likeliest first
  std::vector<std::pair<std::uint32_t, std::uint32_t>> groups_;  // of occurrences_: those that go on alike
  std::vector<Token> path_;  // the pending token, what is forced, and from below the root to the node that is expanded
  std::size_t before_ = 0;   // of path_: all that the tree is below
};

}  // namespace agentkv
