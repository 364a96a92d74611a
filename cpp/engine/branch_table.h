// The live branches and their sequences in the cache.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/cache.h"
#include "engine/branch.h"
#include "engine/coverage.h"
#include "engine/log_change.h"
#include "engine/sequences.h"
#include "engine/speculation.h"
#include "engine/stored_branch.h"

namespace agentkv {

// Every verb checks before it changes anything.
class BranchTable {
 public:
  // speculation hears of what becomes of the branches.
  BranchTable(std::shared_ptr<TreeSeqCache> cache, std::int32_t max_branches, Token vocab_size,
              Speculation& speculation, Window window = {}, Pos quantize_after = -1);

  Branch& at(BranchId id);  // throws BranchClosed
  const Branch& at(BranchId id) const;
  Branch& idle(BranchId id);   // throws BranchClosed, BranchBusy
  Branch& still(BranchId id);  // the same, but its job may be waiting for room
  // The same two, of which cells may be offloaded.
  Branch& jobless(BranchId id);
  Branch& resting(BranchId id);
  std::size_t size() const { return branches_.size(); }
  const std::map<BranchId, std::unique_ptr<Branch>>& all() const { return branches_; }

  void check_room(std::size_t n) const;                       // for so many branches more; throws TooManyBranches
  Branch& create(std::uint64_t rng_stream);                   // throws TooManyBranches
  std::uint64_t take_stream() { return roots_++; }            // of random numbers, for a branch that is no fork
  std::vector<BranchId> fork(Branch& parent, std::size_t n);  // all or none; throws TooManyBranches
  Branch& copy(Branch& branch);                               // its random stream, too; throws TooManyBranches
  // With an epoch: where the branch has not got the token of it before `length` any more, InvalidRollback.
  // What was forgotten since there were so many tokens is taken back, but for what made room; or it is forgotten as of
  // then.
  void rollback(Branch& branch, std::int64_t length, std::optional<Epoch> epoch = {}, bool keep_forgotten = false);
  // Of what a job made, the first `kept` tokens stay: the branch is as if it had made no more. False where the branch
  // is gone or went on since; nothing is changed then.
  bool undo(JobId job, Pos kept);
  void adopt(Branch& dst, const Branch& src);
  // Positions [first, last) keep their tokens and lose their cells: from the last token on nothing sees them. Throws
  // InvalidRange for positions that are not there, and for the last.
  void forget(Branch& branch, Pos first, Pos last, bool for_room);
  // Tokens [first, last) give way to others, and what follows is to be fed again behind them; what was forgotten before
  // `first` stays so. Throws InvalidRange for positions that are not there, and for the last.
  void replace(Branch& branch, Pos first, Pos last, std::span<const Token> tokens);
  void close(Branch& branch) noexcept;

  // A new branch over rows of a sequence that is no branch's, if it has rows, of the beginning of its log. Throws
  // TooManyBranches, InvalidRange for rows that are not there, and for some that lack what their followers look at.
  Branch& restore(const StoredBranch& stored, std::optional<SeqId> held, LogitsRow next_logits);
  // The cells from a position on are kept elsewhere, as these rows, until they are brought back, the last ones first:
  // the positions of another sequence. Only close, rollback and adopt work meanwhile.
  void offload(Branch& branch, std::vector<Piece> rows);
  void reload(Branch& branch, SeqId held);
  void lose_offloaded(Branch& branch);           // they are not brought back: what they are of is fed again
  static void check_here(const Branch& branch);  // throws BranchBusy for one with offloaded cells

  bool known(BranchId id) const { return branches_.contains(id); }

  // A verb or a job on the branch is over: its log, as it is now, is for take_changes().
  void tell(Branch& branch);
  // What changed since the last call, each live branch once; and of those closed since, what they had come to.
  std::vector<LogChange> take_changes();

  // Gives an empty branch the longest prefix of `tokens`, under its adapter, that is in the cache, of a live branch or
  // retained, without its last token.
  struct Reused {
    Pos tokens = 0;
    Pos retained = 0;  // of these, tokens that no live branch has
  };
  Reused reuse_prefix(Branch& branch, std::span<const Token> tokens);
  // How many tokens that would be of. Throws TooManyBranches.
  Pos reusable(std::span<const Token> tokens, AdapterId adapter);
  // Behind what the branch has of `tokens`, the cells of another sequence that begins with them, without the last one.
  // Returns how many it has then: none that rows to come would miss something behind.
  Pos take_pinned(Branch& branch, SeqId held, std::span<const Token> tokens);
  // The same for a branch that has the beginning of the tokens with these keys: first of `src`, which begins with
  // `length` of them, then of what is retained, which leaves as many cells free as are promised to others. Returns how
  // many of the tokens it has in the cache then, never less than before; its log is the caller's to go on.
  Pos take_more(Branch& branch, const Branch* src, Pos length, std::span<const Token> keys, Cell promised);
  const CacheKeys& keys() const { return keys_; }
  // What a branch has in the cache stays for those that begin alike, as far as there is retention.
  void retain(const Branch& branch) noexcept;

  // For a row of logits at the branch's end its last token is pending, once more if need be. Before rows are offered:
  // in a window what it looks at may be gone, and is fed first.
  void take_last(Branch& branch);

  // The cache keeps the first `length` tokens of the branch at most; its log stays. Fewer where what rows from there on
  // look at was let go: those before are to be fed again, as far back as their bits need it.
  void drop_cells(Branch& branch, Pos length, bool recalls = false);

  // What was forgotten at this point of a branch's history leaves the cache.
  void forget_due(Branch& branch);
  // How many of its pending tokens may go into one forward: none sees what the ones before it see no more.
  std::size_t feedable(const Branch& branch) const;
  Cell n_exclusive_cells(const Branch& branch, Pos first) const;  // cells from a position on that no other branch has
  // Has it cells for all of its history, as others that begin alike would?
  bool keeps_all(const Branch& branch) const { return window_.length == 0 && branch.forgotten.empty(); }
  // So much of what the cache has of a branch is a basis to go on from: less than all while a window is fed again.
  Pos covered(const Branch& branch) const;
  // And so much of that ends with a position that has a cell: rows say where it ends.
  Pos storable(const Branch& branch) const;
  // The cells that no row of the branch looks at any more, because of a window, are given back.
  void let_go(Branch& branch);
  // Cells of whole blocks of positions that are older than the newest `quantize_after`, for each branch that has them,
  // are held in fewer bits. Looked at as a block becomes old.
  void quantize_old(Branch& branch) noexcept;
  // Where some layers have windows and others have none: the rows of those that have them leave the cells of whole
  // blocks of positions behind, as far as nobody else looks at them there. No hold may be taken.
  void discard_old(Branch& branch) noexcept;
  // The free cells that a branch needs to take so many tokens more, in chunks where a window gives cells back.
  Cell cells_for(const Branch& branch, std::size_t tokens) const;

  // Drops the cells past n_cached: rows that were fed on the branch's sequence but are not its tokens.
  void trim(Branch& branch);

  // An empty sequence for as long as it takes: none where what is free are the places of branches that may come.
  std::optional<SequenceLease> spare();
  // One that shares a branch's cells, for no longer than a step; none when every sequence is taken.
  std::optional<SequenceLease> borrow(const Branch& branch);

  std::size_t groups() const { return window_.groups.size(); }  // of layers, some of which have windows
  TreeSeqCache& cache() { return *cache_; }
  Cell cells_of(std::span<const BranchId> ids) const;  // that these have, each once; throws BranchClosed
  // Throws std::logic_error unless every sequence is free, or of a branch, or one of so many others, and branches have
  // of the cache what they say. Between steps.
  void check_owners(std::size_t others) const;
  Cell free_cells() const { return cache_->capacity() - cache_->used(); }

 private:
  static LogChange change_of(const Branch& branch);
  Branch& add(BranchState state);
  Branch& fork(Branch& parent);
  Branch& sharing(const Branch& branch, BranchState state);  // a new branch that shares its cells
  void share(const Branch& src, Branch& dst, Pos length);
  void discard_old(const Branch& branch, std::size_t group);
  void cut(Branch& branch, Pos length);            // what it has in the cache, of less than that
  void cut_offloaded(Branch& branch, Pos length);  // what it has elsewhere
  void cut_to_basis(Branch& branch, Pos length);   // to what rows from there on can look back to
  Coverage coverage(const Branch& branch) const;
  Pos lendable(const Branch& branch, Pos length) const;  // how many tokens those that begin alike can have, at most
  Pos unbroken(const Branch& branch) const;              // positions without a hole, from the first on

  std::shared_ptr<TreeSeqCache> cache_;
  Speculation& speculation_;
  const Window window_;
  const Pos quantize_after_;  // -1: nothing is quantised
  const CacheKeys keys_;
  std::size_t max_branches_;
  Sequences sequences_;
  std::map<BranchId, std::unique_ptr<Branch>> branches_;
  std::vector<BranchId> changed_;
  std::vector<LogChange> last_words_;  // of branches that were closed
  BranchId next_id_ = 0;
  std::uint64_t roots_ = 0;
  Epoch epochs_ = 0;  // so many were given out
};

}  // namespace agentkv
