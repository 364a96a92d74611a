// The faces of a cache: what a caller can do is which face it holds. One bookkeeping stands behind all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/api.h"
#include "core/byte_layer.h"
#include "core/run_list.h"
#include "core/step_plan.h"
#include "core/types.h"

namespace agentkv {

class AGENTKV_API Cache {
 public:
  virtual ~Cache() = default;
  virtual bool can_extend(std::int64_t n) const = 0;  // are n more cells free, or can be?
  virtual Cell capacity() const = 0;
  virtual Cell used() const = 0;  // cells that some sequence owns; what is retained is not among them
  virtual void clear() = 0;       // forgets everything; refused inside a step
};

// A step is a transaction: begin_step validates and mutates nothing, the first layer of the forward plans (allocates
// cells), commit_step publishes cells and lengths, abort_step returns every cell.
class AGENTKV_API SteppedCache : public Cache {
 public:
  virtual void commit_step() = 0;
  virtual void abort_step() noexcept = 0;  // harmless when no step is open
  // Positions that the rows of the open step take, [n_tokens]: what the runner feeds as `position`.
  virtual std::span<const Pos> step_positions() const = 0;
};

// One sequence alone. From an empty cache on, position p lies in cell p.
class AGENTKV_API ContiguousCache : public SteppedCache {
 public:
  // The next n tokens. Throws CacheFull, InvalidStep.
  virtual void begin_step(std::int32_t n) = 0;
  virtual Pos length() const = 0;
  virtual void rewind(Pos length) = 0;  // throws InvalidRange unless 0 <= length <= length()
};

// Ids are 0 <= seq < max_sequences(), and an id that holds nothing is an empty sequence. The verbs refuse to read or
// trim an empty one (UnknownSequence), refuse a range [p0, p1) outside [0, seq_len] (InvalidRange; p1 < 0 means the
// end), and are refused inside a step (InvalidStep).
class AGENTKV_API SeqCache : public SteppedCache {
 public:
  // Row i extends sequence seq_ids[i]; rows of one sequence take consecutive positions in row order. An unused id in
  // range starts an empty sequence. Throws CacheFull, UnknownSequence, InvalidStep.
  virtual void begin_step(std::span<const SeqId> seq_ids) = 0;
  // dst must be empty over [p0, p1) (InvalidRange). Shares cells, moves no bytes.
  virtual void seq_cp(SeqId src, SeqId dst, Pos p0 = 0, Pos p1 = -1) = 0;
  virtual void seq_rm(SeqId seq, Pos p0 = 0, Pos p1 = -1) = 0;  // a cell frees only when no owner remains
  virtual void seq_forget(SeqId seq, Pos p0, Pos p1) = 0;       // as seq_rm, and leaves seq_len as it is
  virtual void seq_keep(SeqId seq) = 0;                         // forgets every other sequence
  // For K and V that no forward computes. seq_grow gives seq n more positions, in free cells whose bytes whoever asked
  // then writes (CacheFull). seq_grow_run does so in cells that lie in a row from a multiple of `align` on, for which
  // it lets go what is retained; false, and nothing has changed, where no such cells are. seq_map gives cells of src to
  // dst as well, at other positions: the pieces lie where src holds everything, and go behind all that dst holds and
  // behind each other (InvalidRange).
  virtual void seq_grow(SeqId seq, Cell n) = 0;
  virtual bool seq_grow_run(SeqId seq, Cell n, Cell align) = 0;
  virtual void seq_map(SeqId src, SeqId dst, std::span<const Piece> pieces) = 0;
  // The cells of positions [p0, p1) are held in fewer bits from now on. Throws InvalidRange where the byte layer has
  // none, OutOfMemory; nothing has changed then.
  virtual void seq_quantize(SeqId seq, Pos p0, Pos p1) = 0;
  // Layers with the same window are a group, numbered from the shortest window on; layers without one are in none. The
  // cells of positions [p0, p1) hold nothing in the layers of the first `groups` groups from now on, until they are
  // free: whoever owns them looks at no row of theirs there. lacks() says of each cell how many groups those are.
  virtual void seq_discard(SeqId seq, Pos p0, Pos p1, std::uint8_t groups) = 0;
  virtual std::span<const std::uint8_t> lacks() const = 0;  // [capacity], of those in use
  virtual Pos seq_shared(SeqId seq) const = 0;  // one past the last position whose cell has another owner; 0 for none
  // Retention: cells of histories stay for those that begin alike, as long as no sequence needs them; what was used
  // longest ago leaves first. set_retention says how many cells may stay that no sequence owns; 0, the default, is
  // none. seq_retain names the tokens at positions [0, tokens.size()) of seq, whose cells stay from then on: all of
  // them are held (InvalidRange). seq_recall gives dst, which holds the beginning of `tokens` or nothing, the cells of
  // as many tokens behind it as stayed, and returns its length then; find_retained says how long that would be.
  virtual void set_retention(Cell most) = 0;
  virtual Cell retained() const = 0;  // cells that stay and that no sequence owns
  virtual void seq_retain(SeqId seq, std::span<const std::int32_t> tokens) = 0;
  virtual Pos seq_recall(SeqId dst, std::span<const std::int32_t> tokens) = 0;
  virtual Pos find_retained(std::span<const std::int32_t> tokens) const = 0;
  // The runs of the last n positions before each point where retained histories end or part.
  virtual std::vector<RunList> retained_ends(Pos n) const = 0;
  // Moves cells so that those in use and retained are the lowest ones, as far as a byte layer can move them; returns
  // how many were moved. While a sequence has draft nodes, nothing is moved.
  virtual Cell compact() = 0;
  virtual Pos seq_len(SeqId seq) const = 0;  // the position that follows, whatever holes there are; 0 for an empty one
  virtual SeqId max_sequences() const = 0;
  virtual SeqId live_sequences() const = 0;                    // sequences that hold something
  virtual std::span<const Run> seq_runs(SeqId seq) const = 0;  // position-ordered; valid until the next verb or commit
  virtual Cell shared() const = 0;                             // cells that two sequences or more own
  virtual Cell read_window() const = 0;                        // one past the highest owned cell
};

// A sequence may have a frontier: draft nodes that hang from its last committed token. A node is named by its index in
// the frontier, in the order of proposal, and its position is its parent's plus one. Rows of a step that belong to a
// sequence with proposed nodes are, in row order, plain rows first and then all of those nodes. Levels may be proposed
// and stepped one after another; plain rows are refused once a frontier holds cells (InvalidStep). abort_step, inside
// a step or outside, also withdraws every proposal that no committed step has run. seq_len and seq_runs speak of
// committed tokens alone; seq_cp shares no nodes and is refused into a sequence that has some (InvalidTree); seq_rm of
// the last committed token drops the frontier.
class AGENTKV_API TreeSeqCache : public SeqCache {
 public:
  // Proposes n nodes for the next step that has rows of seq. parents[i] is the index of an earlier node, or -1 for the
  // last committed token. Throws InvalidTree, InvalidStep.
  virtual void propose(std::span<const std::int32_t> parents, std::int32_t n, SeqId seq = 0) = 0;
  // Keeps the accepted chain, len nodes from a root down, each the parent of the next, and frees the rest of the
  // frontier; len 0 drops it all. Cells may move, so that the chain continues the sequence's last run. Throws
  // InvalidTree, InvalidStep; what the byte layer throws while it moves cells is passed on, and the frontier is then
  // dropped.
  virtual void commit(std::span<const std::int32_t> accepted, std::int32_t len, SeqId seq = 0) = 0;
  virtual std::int32_t frontier_size(SeqId seq) const = 0;  // nodes, proposed ones included
  // Throws std::logic_error unless every cell has the owners that the tables say. Takes a walk over all cells: for
  // tests and debug builds.
  virtual void check_owners() const = 0;
};

// The part of a bookkeeping that a byte layer holds: the plan of the open step.
class AGENTKV_API StepPlanner {
 public:
  virtual ~StepPlanner() = default;
  // Plans on the first call of a step and returns the same plan to later ones of the same group of layers; today all
  // layers are one group. `position` is what the program was fed; it must equal step_positions(). Throws InvalidStep
  // without an open step.
  virtual const StepPlan& plan(std::span<const std::int64_t> position, int layer) = 0;
};

// The implementation behind every interface: all verbs, and the plans of its steps.
class AGENTKV_API Bookkeeping : public TreeSeqCache, public StepPlanner {
 public:
  // From now on cells move through this byte layer for as long as it lives. The layer owns its planner, so it is held
  // weakly.
  virtual void set_layer(std::weak_ptr<ByteLayer> layer) = 0;
};

}  // namespace agentkv
