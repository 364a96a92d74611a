// What drafters that guess from earlier text have in common: they read the text of every branch of their engine once.
#pragma once

#include <map>
#include <span>
#include <utility>
#include <vector>

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
  explicit TextDrafter(NgramIndex index) : index_(std::move(index)) { sees_forced = true; }

  // The branch's line, with all of its history but the pending token.
  NgramIndex::Line& caught_up(BranchId branch, std::span<const Token> history);

  // What a draft follows: the last tokens of the branch, as many as are compared, and those that are forced. Valid
  // until the next call.
  std::span<const Token> end_of(const DraftRequest& request);
  // The token at a depth of a draft by a text that goes on as `after`; -1 where it ends. The text that the branch
  // itself is writing goes on with the pending token, with what is forced and then with the guess, so that a repetition
  // is continued for as long as wanted. path: all these, down to that depth.
  static Token next_of(std::span<const Token> after, bool own, std::span<const Token> path, std::int32_t depth);

  NgramIndex index_;

 private:
  std::map<BranchId, NgramIndex::Line> lines_;
  std::vector<Token> end_;
};

}  // namespace agentkv
