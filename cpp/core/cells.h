// The bookkeeping of a cache: sequences that share the cells of one pool, and draft nodes that hang from their ends.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/cache.h"
#include "core/compaction.h"
#include "core/frontier.h"
#include "core/plan_builder.h"
#include "core/prefix_tree.h"
#include "core/seq_table.h"
#include "core/step_rows.h"
#include "core/step_state.h"

namespace agentkv {

// Copies cell src[i] to dst[i], in this order, in every layer.
using CellMover = std::function<void(std::span<const Cell> src, std::span<const Cell> dst)>;

// Keeps every position of every sequence. Policies that keep less derive from it, see cache_builders.h.
class AGENTKV_API Cells : public Bookkeeping {
 public:
  explicit Cells(Cell capacity, SeqId max_sequences = kDefaultMaxSequences);

  // Without a mover an accepted chain stays in the cells that it was drafted in, which is right but not contiguous.
  void set_mover(CellMover mover) { mover_ = std::move(mover); }
  const CellMover& mover() const { return mover_; }
  void set_layer(std::weak_ptr<ByteLayer> layer) override;

  bool can_extend(std::int64_t n) const override { return n >= 0 && n <= available(); }
  Cell capacity() const override { return table_.pool().capacity(); }
  Cell used() const override { return table_.pool().used(); }
  Cell shared() const override { return table_.pool().shared(); }
  Cell read_window() const override { return table_.pool().window(); }
  void clear() override;

  void begin_step(std::span<const SeqId> seq_ids) override;
  const StepPlan& plan(std::span<const std::int64_t> position, int layer) override;
  void commit_step() override;
  void abort_step() noexcept override;
  std::span<const Pos> step_positions() const override;

  Pos seq_len(SeqId seq) const override { return table_.length(seq); }
  SeqId max_sequences() const override { return table_.max_sequences(); }
  SeqId live_sequences() const override;
  std::span<const Run> seq_runs(SeqId seq) const override { return table_.runs(seq); }
  void seq_cp(SeqId src, SeqId dst, Pos p0 = 0, Pos p1 = -1) override;
  void seq_rm(SeqId seq, Pos p0 = 0, Pos p1 = -1) override;
  void seq_forget(SeqId seq, Pos p0, Pos p1) override;
  void seq_keep(SeqId seq) override;
  void seq_grow(SeqId seq, Cell n) override;
  bool seq_grow_run(SeqId seq, Cell n, Cell align) override;
  void seq_map(SeqId src, SeqId dst, std::span<const Piece> pieces) override;
  void seq_quantize(SeqId seq, Pos p0, Pos p1) override;
  void seq_discard(SeqId seq, Pos p0, Pos p1, std::uint8_t groups) override;
  std::span<const std::uint8_t> lacks() const override { return table_.pool().lacks(); }
  Pos seq_shared(SeqId seq) const override { return table_.shared_end(seq); }
  void set_retention(Cell most) override;
  Cell retained() const override { return table_.pool().kept(); }
  void seq_retain(SeqId seq, std::span<const std::int32_t> tokens) override;
  Pos seq_recall(SeqId dst, std::span<const std::int32_t> tokens) override;
  Cell compact() override;
  Pos find_retained(std::span<const std::int32_t> tokens) const override { return kept_.find(tokens); }
  std::vector<RunList> retained_ends(Pos n) const override { return kept_.ends(n); }

  void propose(std::span<const std::int32_t> parents, std::int32_t n, SeqId seq = 0) override;
  void commit(std::span<const std::int32_t> accepted, std::int32_t len, SeqId seq = 0) override;
  std::int32_t frontier_size(SeqId seq) const override;
  void check_owners() const override;

 private:
  Frontier& frontier(SeqId seq) { return frontiers_[static_cast<std::size_t>(seq)]; }
  const Frontier& frontier(SeqId seq) const { return frontiers_[static_cast<std::size_t>(seq)]; }
  std::vector<Cell> cells_at(SeqId seq, Pos p0, Pos p1) const;
  Cell available() const { return table_.pool().free() + table_.pool().kept(); }
  void make_room(Cell n) noexcept { kept_.evict(n - table_.pool().free()); }
  void keep_to_bound() noexcept { kept_.evict(table_.pool().kept() - most_kept_); }
  void drop_frontier(SeqId seq) noexcept;
  void check_no_frontier(const char* verb, SeqId dst) const;
  void check_rows(SeqId seq, std::int32_t rows) const;
  // Plain rows at the head of a group of rows; draft nodes follow them.
  std::int32_t plain_rows(std::int32_t group) const;
  // The cell of a node that has one, or gets one in the open step.
  Cell cell_of(std::int32_t group, std::int32_t node) const;
  void build_plan();
  void build_view(PlanBuilder& builder, std::int32_t group);
  void build_tails(PlanBuilder& builder);

  // What a row of the open step is: a node of a branching frontier, or a row without a tail (node -1).
  struct RowNode {
    std::int32_t group = 0;
    std::int32_t node = -1;
  };

  SeqTable table_;
  PrefixTree kept_{table_.pool()};  // its cells and the sequences' are of one pool
  Cell most_kept_ = 0;
  StepState step_;
  StepPlan plan_;  // positions from begin_step, the rest from the first plan; nothing of it is in table_ before commit
  StepRows rows_;
  std::vector<Frontier> frontiers_;  // [max_sequences]
  std::vector<RowNode> row_nodes_;   // [n_tokens] of the open step; empty when no row has a tail
  RunList tail_;                     // scratch
  CellMover mover_;
  std::weak_ptr<ByteLayer> layer_;
};

}  // namespace agentkv
