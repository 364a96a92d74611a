// The branches that a drafter knows, each with a sequence of the drafter's own cache.
#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <utility>

#include "core/cache.h"
#include "engine/sequences.h"
#include "engine/types.h"

namespace agentkv {

// State has members `SequenceLease seq` and `DraftTree tree`, and is made empty.
template <class State>
class BranchStates {
 public:
  explicit BranchStates(std::shared_ptr<TreeSeqCache> cache) : cache_(std::move(cache)), sequences_(cache_) {}

  State* find(BranchId branch) {
    const auto found = branches_.find(branch);
    return found == branches_.end() ? nullptr : &found->second;
  }

  // The branch's state, made where it has none; null when every sequence is taken. Stays where it is until closed.
  State* open(BranchId branch) {
    if (State* state = find(branch)) return state;
    auto seq = sequences_.take();
    if (!seq) return nullptr;
    State& state = branches_[branch];
    state.seq = std::move(*seq);
    return &state;
  }

  void close(BranchId branch) { branches_.erase(branch); }

  // The sequence keeps its first `length` tokens at most, and no draft nodes.
  void truncate(State& state, Pos length) {
    if (cache_->frontier_size(state.seq) > 0) cache_->commit({}, 0, state.seq);
    if (length < cache_->seq_len(state.seq)) cache_->seq_rm(state.seq, length);
  }

  // Draft nodes of all sequences.
  void drop_nodes() {
    for (auto& [branch, state] : branches_) {
      if (cache_->frontier_size(state.seq) > 0) cache_->commit({}, 0, state.seq);
      state.tree.clear();
    }
  }

 private:
  std::shared_ptr<TreeSeqCache> cache_;
  Sequences sequences_;
  std::unordered_map<BranchId, State> branches_;
};

}  // namespace agentkv
