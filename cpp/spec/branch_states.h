// The branches that a drafter knows, each with a sequence of the drafter's own cache.
#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/cache.h"
#include "engine/types.h"

namespace agentkv {

// State has members `SeqId seq` and `DraftTree tree`, and is made empty.
template <class State>
class BranchStates {
 public:
  explicit BranchStates(std::shared_ptr<TreeSeqCache> cache) : cache_(std::move(cache)) {
    for (SeqId seq = cache_->max_sequences(); seq-- > 0;) free_.push_back(seq);
  }

  State* find(BranchId branch) {
    const auto found = branches_.find(branch);
    return found == branches_.end() ? nullptr : &found->second;
  }

  // The branch's state, made where it has none; null when every sequence is taken. Stays where it is until closed.
  State* open(BranchId branch) {
    if (State* state = find(branch)) return state;
    if (free_.empty()) return nullptr;
    State& state = branches_[branch];
    state.seq = free_.back();
    free_.pop_back();
    return &state;
  }

  void close(BranchId branch) {
    const auto found = branches_.find(branch);
    if (found == branches_.end()) return;
    truncate(found->second, 0);
    free_.push_back(found->second.seq);
    branches_.erase(found);
  }

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
  std::unordered_map<BranchId, State> branches_;
  std::vector<SeqId> free_;
};

}  // namespace agentkv
