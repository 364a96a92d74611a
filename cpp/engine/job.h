// A piece of work on one branch. A job offers rows to each step and takes in their results.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/batch.h"
#include "engine/branch_table.h"
#include "engine/constraints.h"
#include "engine/report.h"
#include "engine/sampler.h"
#include "engine/speculation.h"
#include "engine/stats.h"
#include "engine/vocabulary.h"

namespace agentkv {

class Job;

// Shared by the jobs of one engine.
struct JobContext {
  BranchTable& branches;
  const std::vector<std::unique_ptr<Job>>& jobs;  // in the order they came
  const Vocabulary& vocabulary;
  Stats& stats;
  Speculation& speculation;
  Constraints& constraints;
  Sampler sampler = {};
  RowPool rows = {};
  std::int32_t max_positions = 0;  // of a branch; 0: any number
  bool digests = false;            // of rows that tokens are drawn from
  std::vector<Emitted> emitted = {};
  std::vector<JobId> full = {};  // jobs that wait for room since the last report
};

class Job {
 public:
  Job(JobId id, Branch& branch, JobContext& context) : branch_(branch), context_(context) {
    outcome_.job = id;
    branch.job = this;
  }
  virtual ~Job() { branch_.job = nullptr; }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  virtual const char* kind() const = 0;
  // Rides in every forward, before the budget for prefill is shared out?
  bool rides() const { return !behind() && rides_with_decode(); }
  // Does what needs no forward: the first time that it is called in a step, before any rows are offered.
  void prepare_once() {
    if (!std::exchange(prepared_, true)) prepare();
  }
  // Goes on with the row of logits that was known before, once its constraint has answered.
  virtual void draw_known() {}
  // Its rows of the next forward. First those that the cache lacks of the branch's log, all but the last.
  void offer_rows(Batch& batch);
  // A forward succeeded: `rows` holds the fed rows of this job and their logits.
  void take(const RowResults& rows) {
    if (!rows.segment.entry->history) absorb(rows);
  }
  // The cache has no cell for the next row.
  virtual void no_room(Cell needed, Cell free);
  // Its constraint says that nothing may follow.
  virtual void complete() {}
  // Takes no part in steps for now.
  virtual bool paused() const { return false; }
  // It cannot go on before its owner has made room.
  virtual bool waits_for_room() const { return false; }
  // Its owner has, or has not: then it ends.
  virtual void resume(bool) {}
  // It waits until another branch has so many of its first positions, to share them; 0 for none.
  virtual Pos awaits(BranchId) const { return 0; }
  // Does it write an output under a constraint, of which no token may give way?
  virtual bool is_constrained() const { return false; }
  // The log before what it makes has so many tokens more.
  virtual void shifted(Pos) {}
  // The reader of its emitted tokens has taken this many more.
  virtual void ack(std::int32_t) {}
  void end_step() {
    prepared_ = false;
    give_back();
  }

  void cancel();
  void fail(ErrorKind kind, const std::string& message);

  JobId id() const { return outcome_.job; }
  BranchId branch() const { return branch_.id; }
  const AdapterSpans& adapters() const { return branch_.adapters; }  // of the rows that it offers, by their positions
  bool done() const { return done_; }
  Finished take_outcome();

 protected:
  virtual bool rides_with_decode() const = 0;
  virtual void offer(Batch& batch) = 0;
  virtual void absorb(const RowResults& rows) = 0;
  bool behind() const { return branch_.n_cached + 1 < branch_.length(); }
  virtual void prepare() {}
  // The step or the job has ended: what was borrowed for the step goes back.
  virtual void give_back() {}
  // Takes the branch back to where it was before the job, for jobs that are all or nothing.
  virtual void restore() {}
  // Fills the fields of the outcome that are set however the job ended.
  virtual void conclude() {}
  void finish(const char* reason = nullptr);
  double seconds() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }

  Branch& branch_;
  JobContext& context_;
  Finished outcome_;

 private:
  using Clock = std::chrono::steady_clock;

  const Clock::time_point began_ = Clock::now();
  bool done_ = false;
  bool prepared_ = false;  // for the next step
};

}  // namespace agentkv
