// The step loop: branches, the jobs on them, and one merged forward per step.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/forward.h"
#include "engine/jobs.h"
#include "engine/pinned_cells.h"

namespace agentkv {

struct EngineConfig {
  std::int32_t max_batch_tokens = 512;  // rows of a step; prefill is cut to what decode rows leave of it
  std::int32_t max_branches = kDefaultMaxSequences;
  Cell retain = 0;  // most cells that closed branches leave to those that begin alike, while nobody else needs them
  std::int32_t max_positions = 0;  // tokens that a branch may hold, as the model knows no later position; 0: any number
  Window window = {};              // of the attention of all layers
  Pos quantize_after = -1;         // cells of all but so many newest positions are held in fewer bits; -1: none are
};

// Used by one thread. Verbs check everything before they change anything.
class Engine {
 public:
  Engine(std::shared_ptr<ModelRunner> runner, std::shared_ptr<TreeSeqCache> cache, Vocabulary vocabulary,
         EngineConfig config = {});
  Engine(const Engine&) = delete;  // jobs point into their engine
  Engine& operator=(const Engine&) = delete;

  // Verbs on branches. All but fork, close and the questions throw BranchBusy while a job runs on the branch.
  // A branch whose tokens have this adapter, and how many of them another branch lent. Throws InvalidRange for one that
  // the runner has not got, as set_adapter does.
  std::pair<BranchId, Pos> create(std::span<const Token> tokens = {}, AdapterId adapter = kNoAdapter);
  // For tokens that the rows of a pin, if there is one, are the beginning of: from the pin comes what no other branch
  // lends. What is looked at from `parts_at` on stays, since others will begin alike up to there.
  // Its random numbers are of a stream by take_stream(), so that they do not depend on how long preparing it takes.
  std::pair<BranchId, Pos> create_prompt(std::span<const Token> tokens, std::optional<PinId> pin, Pos parts_at,
                                         std::uint64_t rng_stream, AdapterId adapter = kNoAdapter);
  std::uint64_t take_stream() { return branches_.take_stream(); }  // the one that create() would give a branch now
  // How many of these tokens create() would share.
  Pos n_reusable(std::span<const Token> tokens, AdapterId adapter = kNoAdapter);
  // From the branch's present end on its tokens have another adapter.
  void set_adapter(BranchId branch, AdapterId adapter);
  std::vector<BranchId> fork(BranchId branch, std::size_t n);
  BranchId fork(BranchId branch) { return fork(branch, 1).front(); }
  // A branch in the same state, random stream included: to go back to, or to try something on and adopt it.
  BranchId copy(BranchId branch);
  // With the epoch of the token before `length`, to where the branch has that token still; InvalidRollback otherwise.
  // What was forgotten since is taken back, unless it made room, or all of it is kept as forgotten by then.
  void rollback(BranchId branch, std::int64_t length, std::optional<Epoch> epoch = {}, bool keep_forgotten = false);
  void adopt(BranchId dst, BranchId src);
  // Positions [first, last) keep their tokens and lose their cells, for good where there was no room for them; returns
  // how many cells are free for it.
  Cell forget(BranchId branch, std::int64_t first, std::int64_t last, bool for_room = false);
  std::vector<Forgotten> forgotten(BranchId branch);
  // How many of its tokens the next job feeds at once, before all else.
  std::size_t n_to_refill(BranchId branch);
  // How many cells are free for it once the branch has no token any more from position `first` on.
  Cell n_exclusive_cells(BranchId branch, std::int64_t first);
  // The cache keeps the first `length` tokens of the branch, at most; its next job feeds the others again.
  void drop_cells_from(BranchId branch, std::int64_t length);
  // Tokens before this position can be replaced: not the last one, and none of an output that is being generated.
  Pos replaceable(BranchId branch);
  // Would a generation under this constraint go on with the output that the branch was asked for last?
  bool goes_on(BranchId branch, const std::shared_ptr<Constraint>& constraint) const;
  // Tokens [first, last) give way to others, and all that follows them is computed anew, by the next job.
  void replace(BranchId branch, std::int64_t first, std::int64_t last, std::span<const Token> tokens);
  // Ends the wait of a generation that waits for room: StepReport::out_of_room named it, and copy() and the verbs above
  // worked on its branch meanwhile.
  void resume(JobId job, bool made_room);
  void close(BranchId branch);
  // Moves cells to the front of the cache, of which the first cells that are returned are in use or retained then. With
  // `retain`, what was retained beyond so many cells is let go first.
  Cell compact(std::optional<Cell> retain = {});
  Cell cells_of(std::span<const BranchId> branches) const { return branches_.cells_of(branches); }  // each once
  // Which history a branch has: its length, and the epoch of its last token.
  std::pair<Pos, Epoch> tip(BranchId branch);
  const Branch& branch(BranchId id) { return branches_.at(id); }
  // How the logs differ from what the last call said, as of the end of each branch's last verb or job.
  std::vector<LogChange> take_changes() { return branches_.take_changes(); }

  // Branches whose K and V are kept outside of the cache, see pinned_cells.h. What is in the cells is for whoever holds
  // them to read and write.
  PinnedCells& pinned() { return pinned_; }
  // All or none; without a pin those that have no rows.
  std::vector<BranchId> restore(std::optional<PinId> pin, std::span<const StoredBranch> stored);
  // Rows of a pin by take_unshared(): their cells are the pin's alone from now on, and the branches wait for them.
  // Throws InvalidRange where a branch went on since.
  void offload(std::span<const BranchId> branches, PinId pin);
  void offload(BranchId branch, PinId pin) { offload(std::span(&branch, 1), pin); }
  // The rows of the last offload lie in another pin now; without one they are lost, and those of earlier offloads with
  // them.
  void reload(BranchId branch, std::optional<PinId> pin);
  Pos n_offloaded(BranchId branch);                // rows of the last offload that are still to come back
  std::vector<BranchId> sharers(BranchId branch);  // that have its last cell, itself included; none where it has none
  bool rests(BranchId branch);                     // runs nothing, or waits for room
  std::size_t n_running() const;                   // jobs that take part in steps
  // A branch that was made anew from its tokens draws as the one that it stands for.
  void set_stream(BranchId branch, std::uint64_t rng_stream, std::uint32_t forks);

  // From now on the drafter hears of every branch; a generation that names it attaches it too.
  void attach(std::shared_ptr<Drafter> drafter);

  // Jobs: one per branch at a time.
  JobId extend(BranchId branch, std::span<const Token> tokens);
  JobId generate(BranchId branch, const GenerateOptions& options);
  JobId logits(BranchId branch);
  JobId select(BranchId branch, std::vector<std::vector<Token>> choices);
  void cancel(JobId job);  // a job that has ended is left as it is
  // Ends an extend or a generation that emits, and undoes it as far as it made more than its first `kept` tokens. False
  // where its branch is gone or went on since: then what it made stays.
  bool undo(JobId job, Pos kept = 0);
  // The reader of a generation that emits has taken so many more of its tokens.
  void ack(JobId job, std::int32_t tokens);

  StepReport step();
  // What ends without a forward: cancelled jobs, and those whose logits are known. Part of every step.
  StepReport settle();

  Stats stats();
  // Throws std::logic_error unless every sequence and every cell has the owners that the tables say: for tests. Builds
  // with AGENTKV_CHECK_OWNERS do so after each step.
  void check_owners() const { branches_.check_owners(pinned_.size()); }
  const BranchTable& branches() const { return branches_; }
  const std::shared_ptr<ModelRunner>& runner() const { return runner_; }
  const Vocabulary& vocabulary() const { return vocabulary_; }

  std::size_t drafters() const { return speculation_.size(); }
  // The acceptance of an attached drafter, as learnt so far. Throws InvalidEngine for one that is not attached.
  AcceptanceRates acceptance(const Drafter& drafter) const;
  // Of the drafting policy; to be changed by benchmarks alone.
  void set_policy(const PolicyOptions& policy) { speculation_.options = policy; }
  // From now on generations digest the rows of logits that they draw from, see Finished::digests.
  void set_digests(bool on) { context_.digests = on; }

 private:
  template <class Kind, class... Args>
  JobId start(Branch& branch, Args&&... args);
  Branch& startable(BranchId id);  // idle, and not empty
  void check_positions(const Branch& branch, std::size_t more) const;
  void check_adapter(AdapterId adapter) const;
  std::span<const float> run_forward(std::span<const Segment> segments);
  Job* find(JobId id);
  template <class Action>
  void guarded(Job& job, Action&& action);

  void prepare_jobs();
  void draw_known();
  void offer_rows();
  std::size_t propose_drafts(std::size_t bound);
  void run_forwards(StepReport& report);
  void retry_alone(StepReport& report, const Failure& failure);
  void deliver(std::span<const Segment> segments, std::span<const float> logits, StepReport& report);
  void keep_accepted(const BatchEntry& entry);
  void learn_cost(std::span<const Segment> segments);
  void tell_drafters(const Segment& segment, Pos first, std::span<const float> features);
  void sweep(std::vector<Finished>& finished);

  const std::shared_ptr<ModelRunner> runner_;
  const RunnerInfo info_;
  const Vocabulary vocabulary_;
  const EngineConfig config_;
  Stats stats_;
  Speculation speculation_;
  Constraints constraints_;
  BranchTable branches_;
  PinnedCells pinned_;
  JobContext context_;
  Batch batch_;
  Forward forward_;
  std::vector<std::unique_ptr<Job>> jobs_;  // in the order they came
  std::vector<Segment> segments_;
  std::vector<std::int32_t> accepted_;
  std::vector<float> fed_features_;
  std::vector<Finished> settled_;  // ended between steps, reported by the next
  JobId next_job_ = 0;
};

}  // namespace agentkv
