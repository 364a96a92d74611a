// What a generation may say: the interface of grammars and other rules. One driver answers for all generations of a
// step together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/draft.h"
#include "engine/types.h"

namespace agentkv {

class ConstraintDriver;

// A rule, such as a compiled grammar. Immutable, and known by its identity: what it has come to in a generation is the
// driver's, and follows from the tokens that the generation has said.
class Constraint {
 public:
  Constraint(std::shared_ptr<ConstraintDriver> driver, std::string name)
      : driver_(std::move(driver)), name_(std::move(name)) {}
  virtual ~Constraint() = default;

  const std::shared_ptr<ConstraintDriver>& driver() const { return driver_; }
  const std::string& name() const { return name_; }  // for errors

 private:
  const std::shared_ptr<ConstraintDriver> driver_;
  const std::string name_;
};

// What one generation has said since its last turn, and the driver's answer.
struct ConstraintTurn {
  JobId job = 0;
  const Constraint* constraint = nullptr;
  bool first = false;           // of this generation
  std::span<const Token> said;  // since the last turn; at the first, since the output began
  std::int32_t max_forced = 0;  // that there is a use for
  // Out:
  std::vector<Token> forced = {};  // one after the other the only token that may follow
  bool complete = false;           // nothing may follow
  std::string error = {};          // why the rule cannot be followed any more
};

// A draft of what follows what was said, and what the rule makes of it.
struct DraftTurn {
  JobId job = 0;
  const Draft* draft = nullptr;
  std::int32_t max_added = 0;
  // Out:
  std::vector<std::int32_t> allowed = {};  // nodes that may follow, ascending; parents before children
  // More nodes, each the only token that may follow its parent: a node of the draft, or one added before, which are
  // counted on behind those of the draft.
  std::vector<Token> added = {};
  std::vector<std::int32_t> added_parents = {};
  std::string error = {};
};

// The tokens that may come after what was said, and after each node of a draft that follows it.
struct MaskRequest {
  JobId job = 0;
  const Draft* draft = nullptr;  // null for none
  // Out, zeros before: [1 + nodes, mask_words]. Bit t of a row: token t may come; see token_mask.h.
  std::span<std::uint32_t> masks;
  std::string error = {};
};

class ConstraintDriver {
 public:
  virtual ~ConstraintDriver() = default;

  // ended: generations that take no more turns. What it throws fails the generations that asked.
  virtual void take_turns(std::span<ConstraintTurn> turns, std::span<const JobId> ended) = 0;
  // For generations that took their turn in this step, before their masks. What it throws fails the generations.
  virtual void grow_drafts(std::span<DraftTurn> turns) = 0;
  // For generations that took their turn in this step. Runs beside a forward, on another thread than take_turns(),
  // never at the same time as that.
  virtual void fill_masks(std::span<MaskRequest> requests) = 0;
};

}  // namespace agentkv
