// Drafts with a second, smaller model that has a tree cache of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/cache.h"
#include "engine/drafter.h"
#include "engine/model_runner.h"
#include "spec/branch_states.h"
#include "spec/draft_round.h"

namespace agentkv {

// Rows of a round stay in the cache, so that tokens of the last draft that the target accepts are not computed again.
// All branches share one forward per level. A branch that finds no cell or sequence free gets no draft, nor does one
// that holds a token beyond the vocabulary.
class ModelDrafter final : public Drafter {
 public:
  // Throws InvalidDrafter for a missing program or cache, and for options below 1.
  ModelDrafter(std::shared_ptr<ModelRunner> program, std::shared_ptr<TreeSeqCache> cache, TreeOptions options = {});

  // Throws ForwardFailed; the cache then holds what it held before, or more of the branches' tokens.
  void propose(std::span<DraftRequest> requests) override;
  void observe(BranchId branch, Pos first, std::span<const Token> tokens, std::span<const float> features) override;
  void shared(BranchId src, BranchId dst, Pos length) override;
  void truncated(BranchId branch, Pos length) override;
  void closed(BranchId branch) override { branches_.close(branch); }

  DraftStats stats() const;
  const std::shared_ptr<TreeSeqCache>& cache() const { return cache_; }

 private:
  struct FedBranch {
    SequenceLease seq;
    std::vector<Token> log;  // what its sequence holds
    Pos known = 0;           // tokens of it that are the branch's for as long as nobody says otherwise
    DraftTree tree;          // of the last round; the nodes that ran are the sequence's frontier
  };

  bool knows(std::span<const Token> tokens) const;
  void keep(FedBranch& state, Pos length);
  void reconcile(FedBranch& state, std::span<const Token> history);
  void accept(FedBranch& state, std::span<const Token> history);
  std::span<const float> forward(const LevelRows& rows);

  const std::shared_ptr<ModelRunner> program_;
  const std::shared_ptr<TreeSeqCache> cache_;
  const std::int32_t vocab_size_;
  BranchStates<FedBranch> branches_;
  DraftRound round_;
  LevelRunner prefill_;
  std::vector<std::int32_t> chain_;  // scratch
};

}  // namespace agentkv
