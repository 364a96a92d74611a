// Drafting for the generations of one step, and what the drafters are told of the branches.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/branch.h"
#include "engine/cost.h"
#include "engine/draft_merge.h"
#include "engine/draft_policy.h"
#include "engine/drafter.h"
#include "engine/policy_options.h"
#include "engine/stats.h"

namespace agentkv {

// An attached drafter.
struct DraftSource {
  std::shared_ptr<Drafter> drafter;
  DraftPolicy policy;
  std::string error = {};  // what it last threw when it was told something; the next generation that asks it fails
};

// What one drafter guesses for a generation in this round.
struct Guess {
  DraftSource* source;
  DraftPlan plan = {};
  Draft draft = {};
};

// The speculation of one generation.
struct Speculator {
  std::vector<Guess> guesses;      // one for each drafter
  std::vector<Token> forced = {};  // what follows in this round for certain, before the draft
  Draft draft = {};                // of all guesses: what is verified in this round

  Guess* guess_of(const DraftSource& source);
  // Whether it drafts no more than pays.
  bool adaptive() const;
};

// A generation that can use a draft in this step.
struct PendingDraft {
  Job* job;
  const Branch* branch;
  Speculator* speculator;
  std::int32_t max_depth;  // levels that it can use
};

class Speculation {
 public:
  explicit Speculation(Stats& stats) : stats_(stats) {}

  // The sources of a drafter, or of all its parts; attached now if they were not.
  std::vector<DraftSource*> attach(const std::shared_ptr<Drafter>& drafter);
  // The speculation of a generation that uses the drafter.
  Speculator begin(const std::shared_ptr<Drafter>& drafter);
  // Null for a drafter that is not attached.
  const DraftSource* find(const Drafter& drafter) const;

  void clear_pending() { pending_.clear(); }
  void add(const PendingDraft& pending) { pending_.push_back(pending); }

  // Drafts for what is pending, in a forward that has `rows` rows anyway and room for `room` more. A drafter that
  // throws fails the jobs that asked it.
  void propose(std::size_t rows, std::size_t room);
  // Keeps of these drafts what pays. Returns how many nodes that is.
  std::size_t keep_what_pays(std::size_t rows, std::size_t room);

  // A draft was verified; accepted: the chain of its nodes that was, from a root down.
  void learn(const Speculator& speculator, std::span<const std::int32_t> accepted);
  // A decode forward took so long.
  void learn_cost(std::size_t rows, double seconds) { cost_.learn(rows, seconds); }

  PolicyOptions options{};

  // What drafters are told; one that throws is reported to the next generation that asks it.
  void observe(BranchId branch, Pos first, std::span<const Token> tokens, std::span<const float> features);
  void shared(BranchId src, BranchId dst, Pos length);
  void truncated(BranchId branch, Pos length);
  void closed(BranchId branch);
  bool empty() const { return sources_.empty(); }
  std::size_t size() const { return sources_.size(); }
  std::size_t memory_bytes() const;  // of all drafters

 private:
  template <class What>
  void tell(What&& what);
  DraftSource& attach_one(const std::shared_ptr<Drafter>& drafter);
  void ask(DraftSource& source, std::size_t room);
  void plan(Guess& guess, const PendingDraft& pending);
  void time_drafting(DraftSource& source);
  void merge(Speculator& speculator);
  void rank_candidates();
  std::size_t count_that_pays(std::size_t rows, std::size_t room) const;
  std::size_t cut_to_kept(Speculator& speculator, std::vector<bool>& kept, std::size_t room);
  std::size_t keep_for_trial(const Speculator& speculator, std::vector<bool>& kept, std::size_t room);

  struct Candidate {
    float probability;
    std::uint32_t pending;
    std::int32_t node;
    bool forced;
  };

  Stats& stats_;
  TargetCost cost_{options};
  std::vector<std::unique_ptr<DraftSource>> sources_;
  std::vector<PendingDraft> pending_;
  std::vector<DraftRequest> requests_;
  std::vector<std::pair<Job*, Guess*>> asked_;  // of each request
  std::vector<float> probabilities_;
  DraftMerge merge_;
  std::vector<Candidate> candidates_;    // most probable first
  std::vector<std::vector<bool>> kept_;  // [pending] of the nodes of each
  std::vector<std::int32_t> new_index_;
};

}  // namespace agentkv
