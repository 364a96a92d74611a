// What drafters that guess from earlier text have in common: they read the text of every branch of their engine once.
#pragma once

#include <map>
#include <span>
#include <utility>

#include "engine/drafter.h"
#include "spec/ngram_index.h"

namespace agentkv {

class TextDrafter : public Drafter {
 public:
  // Tokens of branches that were there before this drafter are read when such a branch is drafted for.
  void observe(BranchId branch, Pos first, std::span<const Token> tokens, std::span<const float> features) override;
  void shared(BranchId src, BranchId dst, Pos length) override;
  void truncated(BranchId branch, Pos length) override;
  void closed(BranchId branch) override;
  std::size_t memory_bytes() const override { return index_.memory_bytes(); }

  const NgramIndex& index() const { return index_; }

 protected:
  explicit TextDrafter(NgramIndex index) : index_(std::move(index)) {}

  // The branch's line, with all of its history but the pending token.
  NgramIndex::Line& caught_up(BranchId branch, std::span<const Token> history);

  // The token at a depth below the pending one, path[0], of a text that goes on as `after`; -1 where it ends. The text
  // that the branch itself is writing goes on with the pending token and then with the guess, so that a repetition is
  // continued for as long as wanted. path: from the pending token down to that depth.
  static Token next_of(std::span<const Token> after, bool own, std::span<const Token> path, std::int32_t depth);

  NgramIndex index_;

 private:
  std::map<BranchId, NgramIndex::Line> lines_;
};

}  // namespace agentkv
