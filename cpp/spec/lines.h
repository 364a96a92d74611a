// The branches that a drafter knows, each with a sequence of the drafter's own cache.
#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/faces.h"
#include "engine/types.h"

namespace agentkv {

// Line has members `SeqId seq` and `DraftTree tree`, and is made empty.
template <class Line>
class Lines {
 public:
  explicit Lines(std::shared_ptr<TreeSeqCache> cache) : cache_(std::move(cache)) {
    for (SeqId seq = cache_->max_sequences(); seq-- > 0;) free_.push_back(seq);
  }

  Line* find(BranchId branch) {
    const auto found = lines_.find(branch);
    return found == lines_.end() ? nullptr : &found->second;
  }

  // The branch's line, made where it has none; null when every sequence is taken. Stays where it is until closed.
  Line* open(BranchId branch) {
    if (Line* line = find(branch)) return line;
    if (free_.empty()) return nullptr;
    Line& line = lines_[branch];
    line.seq = free_.back();
    free_.pop_back();
    return &line;
  }

  void close(BranchId branch) {
    const auto found = lines_.find(branch);
    if (found == lines_.end()) return;
    truncate(found->second, 0);
    free_.push_back(found->second.seq);
    lines_.erase(found);
  }

  // The sequence keeps its first `length` tokens at most, and no draft nodes.
  void truncate(Line& line, Pos length) {
    if (cache_->frontier_size(line.seq) > 0) cache_->commit({}, 0, line.seq);
    if (length < cache_->seq_len(line.seq)) cache_->seq_rm(line.seq, length);
  }

  // Draft nodes of all sequences.
  void drop_nodes() {
    for (auto& [branch, line] : lines_) {
      if (cache_->frontier_size(line.seq) > 0) cache_->commit({}, 0, line.seq);
      line.tree.clear();
    }
  }

 private:
  std::shared_ptr<TreeSeqCache> cache_;
  std::unordered_map<BranchId, Line> lines_;
  std::vector<SeqId> free_;
};

}  // namespace agentkv
