// A piece of work on one branch. A job offers rows to each step and takes in their results.
#pragma once

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
  std::vector<Emitted> emitted = {};
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
  // Rides in every forward, before the budget for prefill is shared out.
  virtual bool rides_with_decode() const = 0;
  // Does what needs no forward: the first time that it is called in a step, before any rows are offered.
  void prepare_once() {
    if (!std::exchange(prepared_, true)) prepare();
  }
  // Goes on with the row of logits that was known before, once its constraint has answered.
  virtual void draw_known() {}
  virtual void offer(Batch& batch) = 0;
  // A forward succeeded: `rows` holds the fed rows of this job and their logits.
  virtual void absorb(const RowResults& rows) = 0;
  // The cache has no cell for the next row.
  virtual void no_room(Cell needed, Cell free);
  // Its constraint says that nothing may follow.
  virtual void complete() {}
  // Takes no part in steps for now.
  virtual bool paused() const { return false; }
  // The reader of its emitted tokens has taken this many more.
  virtual void taken(std::int32_t) {}
  void end_step() {
    prepared_ = false;
    give_back();
  }

  void cancel();
  void fail(ErrorKind kind, const std::string& message);

  JobId id() const { return outcome_.job; }
  bool done() const { return done_; }
  Finished take_outcome();

 protected:
  virtual void prepare() {}
  // The step or the job has ended: what was borrowed for the step goes back.
  virtual void give_back() {}
  // Takes the branch back to where it was before the job, for jobs that are all or nothing.
  virtual void restore() {}
  // Fills the fields of the outcome that are set however the job ended.
  virtual void conclude() {}
  void finish(const char* reason = nullptr);

  Branch& branch_;
  JobContext& context_;
  Finished outcome_;

 private:
  bool done_ = false;
  bool prepared_ = false;  // for the next step
};

}  // namespace agentkv
