// The constraints of a step's generations: their turns and drafts, taken together, and their masks, filled while
// forwards run.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/background.h"
#include "engine/branch.h"
#include "engine/constrained_draft.h"
#include "engine/constraint.h"
#include "engine/speculation.h"
#include "engine/stats.h"
#include "engine/token_mask.h"

namespace agentkv {

// The constraint of one generation.
struct Constrained {
  std::shared_ptr<Constraint> constraint;
  Pos told;                                   // the driver knows the branch's log up to here
  bool began = false;                         // had a turn
  ConstrainedDraft ride = {};                 // of this step
  std::span<const std::uint32_t> masks = {};  // of this step: [1 + nodes, mask_words]
  std::string error = {};                     // why they could not be filled
};

// A generation that needs a turn in this step.
struct PendingTurn {
  Job* job;
  const Branch* branch;
  Constrained* constrained;
  Speculator* speculator = nullptr;  // whose draft follows; null for none
  std::int32_t max_depth = 0;        // levels that there is a use for
};

class Constraints {
 public:
  Constraints(Stats& stats, std::int32_t vocab_size) : stats_(stats), vocab_size_(vocab_size) {}

  void clear_pending() { pending_.clear(); }
  void add(const PendingTurn& pending) { pending_.push_back(pending); }
  const std::vector<PendingTurn>& pending() const { return pending_; }

  // Turns of what is pending. Those that are complete, or fail, end. The forced tokens of the others ride, together
  // `room` of them at most, and their speculators know them; returns how many that is.
  std::size_t take_turns(std::size_t room);
  // Leaves of the drafts what may follow, and adds what is forced behind it, `room` nodes each at most.
  void grow_drafts(std::size_t room);
  // What speculators have kept rides behind the forced tokens.
  void add_drafts();
  // Begins to fill the masks of what is pending and did not end, on a thread of its own.
  void begin_masks();
  void await_masks();

  // After a node of the generation's ride, or after what it has said (-1). Throws ForwardFailed.
  TokenMask mask(const Constrained& constrained, std::int32_t node) const;
  // Whether nothing may follow what has been said.
  bool is_complete(JobId job, const Branch& branch, Constrained& constrained);
  void ended(JobId job, const Constrained& constrained);

 private:
  std::vector<std::shared_ptr<ConstraintDriver>> drivers() const;
  void ask(ConstraintDriver& driver);
  void answer(const PendingTurn& pending, ConstraintTurn& turn);
  std::size_t share_out(std::size_t room);
  void ask_to_grow(ConstraintDriver& driver, std::size_t room);
  void forget_done();
  void fill();

  struct Answer {
    const PendingTurn* pending;
    ConstraintTurn turn;
  };
  struct Filling {
    std::shared_ptr<ConstraintDriver> driver;
    std::vector<MaskRequest> requests = {};
    std::vector<Constrained*> asked = {};
  };

  Stats& stats_;
  const std::int32_t vocab_size_;
  std::vector<PendingTurn> pending_;
  std::vector<Answer> answers_;  // of this step's turns, of those that go on
  std::vector<std::pair<std::shared_ptr<ConstraintDriver>, JobId>> ended_;
  std::vector<std::uint32_t> masks_;
  std::vector<Filling> fillings_;  // the background's while it runs
  double fill_seconds_ = 0;        // of the last filling
  bool filling_ = false;
  Background background_;  // last: its thread uses what is above
};

}  // namespace agentkv
