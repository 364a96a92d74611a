// Drafts with a head on the target's features: one decoder layer, an EAGLE-3 head or the target's own layer of
// multi-token prediction.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/cache.h"
#include "engine/drafter.h"
#include "spec/branch_states.h"
#include "spec/draft_round.h"
#include "spec/eagle_branch.h"
#include "spec/head_runner.h"

namespace agentkv {

// The head's entry for a position pairs the target's features there with the token after it. Entries of a branch's own
// tokens are made from true features; below them, a draft node stands on what the head gave out for its parent. Nodes
// are forgotten after each round, since the target's features of those that it accepts are better. All branches share
// one forward per level. Positions in the head's cache count from where it first saw a branch: the head only sees
// differences.
//
// A branch that finds no sequence free gets no draft; one that finds no cell free begins anew.
class EagleDrafter final : public Drafter {
 public:
  // d2t: token i of the head is token i + d2t[i] of the target; empty where the vocabularies are equal. Throws
  // InvalidDrafter for a missing head or cache, a d2t that does not fit the vocabularies, and options below 1.
  EagleDrafter(std::shared_ptr<HeadRunner> head, std::shared_ptr<TreeSeqCache> cache, std::span<const std::int32_t> d2t,
               std::int32_t target_vocab_size, TreeOptions options = {});

  // Throws ForwardFailed; the cache then holds what it held before, or more of the branches' entries.
  void propose(std::span<DraftRequest> requests) override;
  void observe(BranchId branch, Pos first, std::span<const Token> tokens, std::span<const float> features) override;
  void shared(BranchId src, BranchId dst, Pos length) override;
  void truncated(BranchId branch, Pos length) override;
  void closed(BranchId branch) override { branches_.close(branch); }

  DraftStats stats() const;
  const std::shared_ptr<TreeSeqCache>& cache() const { return cache_; }

 private:
  void join(DraftRequest& request);
  void append(EagleBranch& state, std::span<const Token> tokens, std::span<const float> features);
  void flush(EagleBranch& state);
  void restart(EagleBranch& state, Pos position);
  void keep(EagleBranch& state, Pos length);
  void fuse();
  std::span<const float> forward(const LevelRows& rows, std::span<const std::int32_t> sources);

  const std::shared_ptr<HeadRunner> head_;
  const std::shared_ptr<TreeSeqCache> cache_;
  const std::size_t feature_dim_;
  const std::size_t hidden_dim_;
  const Pos flush_rows_;
  BranchStates<EagleBranch> branches_;
  DraftRound round_;
  LevelRunner prefill_;
  std::vector<EagleBranch*> joined_;  // in the round
  std::vector<float> features_;       // [rows, feature_dim] of the first level
  std::vector<float> fused_;          // [rows, hidden_dim]
  std::vector<float> hidden_in_;      // [rows, hidden_dim] of a forward over nodes
  std::vector<float> level_hidden_;   // [logits rows, hidden_dim] that this level gave out
  std::vector<float> above_hidden_;   // ... that the level before it gave out
  double fuse_seconds_ = 0;
};

}  // namespace agentkv
