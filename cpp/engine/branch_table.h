// The live branches and their sequences in the cache.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/cache.h"
#include "engine/branch.h"
#include "engine/log_change.h"
#include "engine/speculation.h"

namespace agentkv {

// Every verb checks before it changes anything.
class BranchTable {
 public:
  // speculation hears of what becomes of the branches.
  BranchTable(std::shared_ptr<TreeSeqCache> cache, std::int32_t max_branches, Speculation& speculation);

  Branch& at(BranchId id);    // throws BranchClosed
  Branch& idle(BranchId id);  // throws BranchClosed, BranchBusy
  std::size_t size() const { return branches_.size(); }
  const std::map<BranchId, std::unique_ptr<Branch>>& all() const { return branches_; }

  Branch& create();                                           // throws TooManyBranches
  std::vector<BranchId> fork(Branch& parent, std::size_t n);  // all or none; throws TooManyBranches
  Branch& copy(Branch& branch);                               // its random stream, too; throws TooManyBranches
  void rollback(Branch& branch, std::int64_t length);         // throws InvalidRollback
  // Of what a job made, the first `kept` tokens stay: the branch is as if it had made no more. False where the branch
  // is gone or went on since; nothing is changed then.
  bool take_back(JobId job, Pos kept);
  void adopt(Branch& dst, const Branch& src);
  void close(Branch& branch) noexcept;
  bool known(BranchId id) const { return branches_.contains(id); }

  // A verb or a job on the branch is over: its log, as it is now, is for take_changes().
  void tell(Branch& branch);
  // What changed since the last call, each live branch once; and of those closed since, what they had come to.
  std::vector<LogChange> take_changes();

  // Gives an empty branch the longest prefix of `tokens` that a live branch has in the cache, without its last token.
  Pos reuse_prefix(Branch& branch, std::span<const Token> tokens);

  // The tokens to feed for a row of logits at the branch's end: what is pending, or the last token once more.
  std::span<const Token> refeed(Branch& branch);

  // The cache keeps the first `length` tokens of the branch at most; its log stays.
  void drop_cells(Branch& branch, Pos length);

  // Drops the cells past n_cached: rows that were fed on the branch's sequence but are not its tokens.
  void trim(Branch& branch);

  // A sequence that shares the branch's cells until give_back(); none when every sequence is a branch's.
  std::optional<SeqId> borrow(const Branch& branch);
  void give_back(SeqId seq);

  TreeSeqCache& cache() { return *cache_; }
  Cell free_cells() const { return cache_->capacity() - cache_->used(); }

 private:
  static LogChange change_of(const Branch& branch);
  void check_room(std::size_t n) const;
  Branch& add(BranchState state);
  Branch& fork(Branch& parent);
  Branch& sharing(const Branch& branch, BranchState state);  // a new branch that shares its cells
  void share(const Branch& src, Branch& dst, Pos length);

  std::shared_ptr<TreeSeqCache> cache_;
  Speculation& speculation_;
  std::size_t max_branches_;
  std::map<BranchId, std::unique_ptr<Branch>> branches_;
  std::vector<SeqId> free_;  // sequences that hold nothing
  std::vector<BranchId> changed_;
  std::vector<LogChange> last_words_;  // of branches that were closed
  BranchId next_id_ = 0;
  std::uint64_t roots_ = 0;
};

}  // namespace agentkv
