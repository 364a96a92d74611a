// Guesses that a branch goes on as this text did before: in its own history or in that of any branch of the engine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spec/text_drafter.h"

namespace agentkv {

struct PromptLookupOptions {
  std::int32_t max_ngram = 16;          // tokens of context compared at most
  std::int32_t min_ngram = 2;           // tokens of context that must agree
  std::int32_t max_nodes = 16;          // of a draft
  std::int32_t width = 2;               // continuations that differ, at most
  std::int32_t max_chain = 16;          // earlier occurrences looked at, newest first
  std::int64_t max_tokens = 1ll << 18;  // of text kept; the oldest is forgotten
};

class PromptLookup final : public TextDrafter {
 public:
  explicit PromptLookup(const PromptLookupOptions& options = {});  // throws InvalidDrafter

  // The continuation of the longest match (of equals the newest), and where others differ from it, theirs. A node
  // after l tokens that agree has confidence l / (l + 1); where it has siblings, of what they leave. Nodes come in the
  // order of the probability of their path.
  void propose(std::span<DraftRequest> requests) override;

  const PromptLookupOptions& options() const { return options_; }
  std::int64_t matches_compared() const { return compared_; }  // ever

 private:
  struct Node {
    std::int32_t parent;
    Token token;
    float confidence;
    float path;      // product of the confidences down to the node
    float left = 1;  // of probability for children yet to come
  };

  void merge(const NgramIndex::Match& match, bool at_end, std::int32_t max_depth);
  std::int32_t child_of(std::int32_t parent, Token token) const;  // -1 for none
  Draft best(std::int32_t max_nodes) const;

  const PromptLookupOptions options_;
  std::int64_t compared_ = 0;
  // The tree in the making; nodes_[0] is what the draft follows.
  std::vector<NgramIndex::Match> matches_;
  std::vector<Node> nodes_;
  std::vector<Token> before_;  // the pending token and what is forced
  std::vector<Token> path_;
  std::int32_t leaves_ = 0;
};

}  // namespace agentkv
