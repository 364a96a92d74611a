// The interface of drafters, which guess how branches continue. A guess can only cost time: the target decides every
// token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/acceptance.h"
#include "engine/draft.h"
#include "engine/types.h"

namespace agentkv {

// The request of one branch in a step, and the drafter's answer.
struct DraftRequest {
  BranchId branch = 0;
  std::span<const Token> history;  // every token of the branch; the target has not run the last one yet
  std::span<const Token> forced;   // what surely follows; the draft follows the last of these
  std::int32_t max_nodes = 0;      // >= 1
  std::int32_t max_depth = 0;      // >= 1: levels below the last token
  // Expected accepted tokens that a row of the target, or a level of drafting, must bring to be worth its time: a
  // node's, and what all nodes of one more level must sum to.
  float row_worth = 0;
  float level_worth = 0;
  Draft draft = {};         // out; left empty for none
  std::int32_t levels = 0;  // out: that were drafted one after the other; 0 where depth costs nothing
};

// Used by one thread, that of its engine, and by one engine. Everything below `propose` tells it what became of the
// branches, whether or not they are drafted for; it comes between steps or inside one, never inside propose().
class Drafter {
 public:
  virtual ~Drafter() = default;

  // Answers the requests of one step together. What it throws fails the generations that asked.
  virtual void propose(std::span<DraftRequest> requests) = 0;

  // The target ran `tokens` of the branch at positions [first, first + n) for good. features: float32 [n, F], what
  // the target gave out for them; empty where it has none.
  virtual void observe(BranchId, Pos /*first*/, std::span<const Token> /*tokens*/,
                       std::span<const float> /*features*/) {}
  // dst now has the first `length` tokens of src, in place of what it had before.
  virtual void shared(BranchId /*src*/, BranchId /*dst*/, Pos /*length*/) {}
  // Of what the target ran of the branch, the first `length` tokens are left.
  virtual void truncated(BranchId, Pos /*length*/) {}
  virtual void closed(BranchId) {}

  // Drafters whose guesses are to be verified together, in place of its own.
  virtual std::vector<std::shared_ptr<Drafter>> parts() const { return {}; }

  // What it keeps of the text of branches.
  virtual std::size_t memory_bytes() const { return 0; }

  // Whether drafts follow what they have cost and brought; without, as much is drafted and verified as there is room.
  bool adaptive = true;
  // Whether it knows what DraftRequest::forced is. The drafts of one that does not follow the history, and so must
  // guess what is forced as well; max_nodes and max_depth leave room for that.
  bool sees_forced = false;
  // What acceptance to expect before any draft was verified. Read when the drafter is attached.
  AcceptanceRates prior = {};
};

}  // namespace agentkv
