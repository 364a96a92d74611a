#include <string>
#include <vector>

#include "core/cells.h"
#include "core/errors.h"
#include "core/steps.h"
#include "cpp/check.h"

using namespace agentkv;
using testing::drawn;
using testing::runs_of;
using testing::step;

using Runs = std::vector<Run>;
using Rows = std::vector<std::string>;

namespace {

std::vector<SeqId> rows(SeqId seq, std::size_t n) { return std::vector<SeqId>(n, seq); }

void test_lone_sequence_is_contiguous() {
  Cells cells(16);
  StepPlan plan = step(cells, rows(3, 4));
  CHECK(plan.kind == StepPlan::Kind::SingleContiguous);
  CHECK_EQ(plan.positions, (std::vector<Pos>{0, 1, 2, 3}));
  CHECK_EQ(plan.write_cells, (std::vector<Cell>{0, 1, 2, 3}));
  CHECK_EQ(drawn(plan), (Rows{"#...", "##..", "###.", "####"}));
  plan = step(cells, {3});
  CHECK(plan.kind == StepPlan::Kind::SingleContiguous);
  CHECK_EQ(drawn(plan), Rows{"#####"});
  CHECK_EQ(runs_of(cells, 3), (Runs{{0, 0, 5}}));
  CHECK_EQ(cells.live_sequences(), 1);
}

void test_fork_shares_and_diverges() {
  Cells cells(16);
  step(cells, rows(0, 3));
  cells.seq_cp(0, 1);
  CHECK_EQ(cells.used(), 3);
  CHECK_EQ(cells.shared(), 3);
  const StepPlan plan = step(cells, {1, 0, 1});
  CHECK(plan.kind == StepPlan::Kind::Explicit);
  CHECK_EQ(plan.positions, (std::vector<Pos>{3, 3, 4}));
  CHECK_EQ(plan.row_view, (std::vector<std::int32_t>{0, 1, 0}));
  CHECK_EQ(drawn(plan), (Rows{"####..", "###.#.", "####.#"}));
  CHECK_EQ(runs_of(cells, 1), (Runs{{0, 0, 4}, {4, 5, 1}}));
  CHECK_EQ(runs_of(cells, 0), (Runs{{0, 0, 3}, {3, 4, 1}}));
  cells.seq_rm(0);
  CHECK_EQ(cells.used(), 5);
  CHECK_EQ(cells.shared(), 0);
  CHECK_EQ(cells.read_window(), 6);
  // The freed cell 4 is the lowest, so sequence 1 is not in position order any more: still explicit, still right.
  const StepPlan next = step(cells, {1});
  CHECK_EQ(next.write_cells, std::vector<Cell>{4});
  CHECK(next.kind == StepPlan::Kind::Explicit);
  CHECK_EQ(drawn(next), Rows{"######"});
}

void test_rollback_restores_contiguity() {
  Cells cells(16);
  step(cells, rows(0, 4));
  cells.seq_cp(0, 1);
  step(cells, {0, 1});
  cells.seq_rm(0, 2);
  CHECK_EQ(cells.seq_len(0), 2);
  CHECK_EQ(cells.used(), 5);
  cells.seq_keep(0);
  CHECK_EQ(cells.used(), 2);
  CHECK(step(cells, {0}).kind == StepPlan::Kind::SingleContiguous);
}

void test_holes_and_partial_copies() {
  Cells cells(32);
  step(cells, rows(0, 10));
  cells.seq_rm(0, 3, 6);
  CHECK_EQ(runs_of(cells, 0), (Runs{{0, 0, 3}, {6, 6, 4}}));
  CHECK_EQ(cells.seq_len(0), 10);
  CHECK_EQ(cells.used(), 7);
  const StepPlan plan = step(cells, {0});  // the hole's first cell is the lowest free one
  CHECK_EQ(plan.positions, std::vector<Pos>{10});
  CHECK_EQ(plan.write_cells, std::vector<Cell>{3});
  CHECK_EQ(drawn(plan), Rows{"####..####"});

  cells.seq_cp(0, 1, 7, 9);
  cells.seq_cp(0, 1, 0, 2);  // before what it holds
  CHECK_EQ(runs_of(cells, 1), (Runs{{0, 0, 2}, {7, 7, 2}}));
  cells.seq_cp(0, 1, 2, 7);  // bridges both ends, over the source's hole
  CHECK_EQ(runs_of(cells, 1), (Runs{{0, 0, 3}, {6, 6, 3}}));
  cells.seq_cp(0, 1, 3, 6);  // nothing but the hole
  CHECK_EQ(runs_of(cells, 1), (Runs{{0, 0, 3}, {6, 6, 3}}));
  CHECK_EQ(cells.shared(), 6);
  cells.seq_rm(1, 1, 8);
  CHECK_EQ(runs_of(cells, 1), (Runs{{0, 0, 1}, {8, 8, 1}}));
  cells.seq_rm(1, 8, -1);
  CHECK_EQ(runs_of(cells, 1), (Runs{{0, 0, 1}}));
  CHECK_EQ(cells.seq_len(1), 8);  // the hole does not shorten it
  cells.seq_rm(1, 0, 1);
  CHECK_EQ(runs_of(cells, 1), Runs{});
  CHECK_EQ(cells.live_sequences(), 2);
  cells.seq_rm(1, 3);
  CHECK_EQ(cells.seq_len(1), 3);
  cells.seq_rm(1, 0, 0);  // an empty range is no change
  CHECK_EQ(cells.seq_len(1), 3);
}

void test_window_and_sinks() {
  Cells cells(16);
  step(cells, rows(0, 6));
  cells.begin_step(rows(0, 2));
  const StepPlan& plan = testing::plan(cells);
  CHECK_EQ(drawn(plan, 3), (Rows{"....###.", ".....###"}));
  CHECK_EQ(drawn(plan, 3, 2), (Rows{"##..###.", "##...###"}));
  CHECK_EQ(drawn(plan, 100, 1), (Rows{"#######.", "########"}));
  cells.abort_step();
}

void test_step_is_a_transaction() {
  Cells cells(8);
  step(cells, rows(0, 3));
  cells.begin_step(std::vector<SeqId>{0, 1, 1});
  CHECK_EQ(cells.seq_len(1), 0);
  CHECK_THROWS(cells.commit_step(), InvalidStep, "before the forward");
  testing::plan(cells);
  CHECK_EQ(cells.used(), 3);
  CHECK_THROWS(cells.seq_cp(0, 1), InvalidStep, "seq_cp");
  CHECK_THROWS(cells.seq_rm(0), InvalidStep, "seq_rm");
  CHECK_THROWS(cells.seq_keep(0), InvalidStep, "seq_keep");
  CHECK_THROWS(cells.clear(), InvalidStep, "clear");
  CHECK_THROWS(cells.begin_step(std::vector<SeqId>{0}), InvalidStep, "begin_step");
  cells.abort_step();
  cells.abort_step();
  CHECK_EQ(cells.used(), 3);
  CHECK_EQ(cells.seq_len(0), 3);
  CHECK_EQ(cells.seq_len(1), 0);
  CHECK(cells.step_positions().empty());
  CHECK_THROWS(cells.plan(std::vector<std::int64_t>{3}, 0), InvalidStep, "without an open step");
  CHECK_THROWS(cells.commit_step(), InvalidStep, "without an open step");
  CHECK(step(cells, rows(0, 5)).kind == StepPlan::Kind::SingleContiguous);
}

void test_plan_is_made_once() {
  Cells cells(8);
  cells.begin_step(rows(0, 2));
  CHECK_THROWS(cells.plan(std::vector<std::int64_t>{0, 2}, 0), InvalidStep, "row 1", "position 2", "expects 1");
  CHECK_THROWS(cells.plan(std::vector<std::int64_t>{0}, 0), InvalidStep, "1 positions", "has 2");
  const StepPlan& first = testing::plan(cells);
  const StepPlan& again = testing::plan(cells);
  CHECK(&first == &again);
  cells.commit_step();
}

void test_refusals_change_nothing() {
  Cells cells(8, 4);
  step(cells, rows(0, 4));
  cells.seq_cp(0, 1, 0, 2);
  CHECK_THROWS(cells.begin_step(std::vector<SeqId>{0, 1, 4}), UnknownSequence, "sequence 4", "[0, 4)");
  CHECK_THROWS(cells.begin_step(std::vector<SeqId>{-1}), UnknownSequence, "-1");
  CHECK_THROWS(cells.begin_step(rows(0, 5)), CacheFull, "5 rows", "4 of 8");
  CHECK_THROWS(cells.begin_step({}), InvalidStep, "0 rows");
  CHECK_THROWS(cells.seq_cp(0, 1), InvalidRange, "sequence 1", "position 0");
  CHECK_THROWS(cells.seq_cp(0, 1, 1, 4), InvalidRange, "position 1");
  CHECK_THROWS(cells.seq_cp(0, 0), InvalidRange, "sequence 0");
  CHECK_THROWS(cells.seq_cp(0, 2, 0, 5), InvalidRange, "[0, 5)", "below 4");
  CHECK_THROWS(cells.seq_cp(0, 2, -1, 2), InvalidRange, "[-1, 2)");
  CHECK_THROWS(cells.seq_cp(0, 2, 3, 2), InvalidRange, "[3, 2)");
  CHECK_THROWS(cells.seq_cp(2, 3), UnknownSequence, "sequence 2 holds nothing");
  CHECK_THROWS(cells.seq_cp(0, 9), UnknownSequence, "sequence 9");
  CHECK_THROWS(cells.seq_cp(9, 0), UnknownSequence, "sequence 9");
  CHECK_THROWS(cells.seq_rm(0, 5), InvalidRange, "[5, 4)");
  CHECK_THROWS(cells.seq_rm(0, 0, 5), InvalidRange, "below 4");
  CHECK_THROWS(cells.seq_rm(3), UnknownSequence, "sequence 3 holds nothing");
  CHECK_THROWS(cells.seq_keep(3), UnknownSequence, "sequence 3");
  CHECK_THROWS(cells.seq_len(4), UnknownSequence, "sequence 4");
  CHECK_THROWS(cells.seq_runs(-2), UnknownSequence, "-2");
  CHECK_EQ(runs_of(cells, 0), (Runs{{0, 0, 4}}));
  CHECK_EQ(runs_of(cells, 1), (Runs{{0, 0, 2}}));
  CHECK_EQ(cells.used(), 4);
  CHECK(cells.can_extend(4));
  CHECK(!cells.can_extend(5));
  CHECK(!cells.can_extend(-1));
  cells.clear();
  CHECK_EQ(cells.used(), 0);
  CHECK_EQ(cells.shared(), 0);
  CHECK_EQ(cells.live_sequences(), 0);
}

void test_bounds_of_construction() {
  CHECK_THROWS(Cells(0), InvalidRange, "capacity is 0");
  CHECK_THROWS(Cells(8, 0), InvalidRange, "max_sequences is 0");
  CHECK_THROWS(Cells(8, 70000), InvalidRange, "70000", "65535");
}

// What a cell lacks it lacks for all who have it, wherever it moves, until it is free and taken again.
void test_cells_that_lack_groups_of_layers() {
  Cells cells(64);
  cells.set_mover([](std::span<const Cell>, std::span<const Cell>) {});
  step(cells, rows(0, 10));
  step(cells, rows(1, 20));
  cells.seq_discard(1, 2, 8, 1);
  cells.seq_discard(1, 4, 6, 2);
  cells.seq_discard(1, 0, 20, 0);
  const auto lacks = [&](SeqId seq) {
    std::vector<int> out;
    for (const Run& run : cells.seq_runs(seq)) {
      for (Cell i = 0; i < run.length; ++i) out.push_back(cells.lacks()[static_cast<std::size_t>(run.cell + i)]);
    }
    return out;
  };
  std::vector<int> expected(20);
  std::fill(expected.begin() + 2, expected.begin() + 8, 1);
  std::fill(expected.begin() + 4, expected.begin() + 6, 2);
  CHECK(lacks(1) == expected);
  cells.seq_cp(1, 2);
  CHECK(lacks(2) == expected);
  cells.seq_rm(0);
  CHECK_EQ(cells.compact(), 10);
  CHECK(lacks(1) == expected);
  CHECK(lacks(2) == expected);
  cells.seq_rm(1);
  cells.seq_rm(2);
  step(cells, rows(0, 64));
  CHECK(lacks(0) == std::vector<int>(64));
  cells.seq_rm(0, 60);
  cells.begin_step(rows(0, 1));
  CHECK_THROWS(cells.seq_discard(0, 0, 1, 1), InvalidStep);
}

void test_many_sequences_over_one_trunk() {
  Cells cells(1024);
  step(cells, rows(0, 512));
  std::vector<SeqId> all{0};
  for (SeqId seq = 1; seq < cells.max_sequences(); ++seq) {
    cells.seq_cp(0, seq);
    all.push_back(seq);
  }
  CHECK_EQ(static_cast<SeqId>(all.size()), 256);
  const StepPlan plan = step(cells, all);
  CHECK_EQ(plan.n_views(), 256);
  CHECK_EQ(plan.read_len, 768);
  const std::vector<std::uint8_t> mask = plan.mask();
  for (std::int32_t row = 0; row < 256; ++row) {
    for (Cell cell = 0; cell < plan.read_len; ++cell) {
      CHECK_EQ(mask[row * plan.read_len + cell] != 0, cell < 512 || cell == 512 + row);
    }
  }
  for (SeqId seq = 1; seq < 256; ++seq) cells.seq_rm(seq);
  CHECK_EQ(cells.used(), 513);
  CHECK_EQ(cells.shared(), 0);
}

}  // namespace

int main() {
  test_lone_sequence_is_contiguous();
  test_fork_shares_and_diverges();
  test_rollback_restores_contiguity();
  test_holes_and_partial_copies();
  test_window_and_sinks();
  test_step_is_a_transaction();
  test_plan_is_made_once();
  test_refusals_change_nothing();
  test_bounds_of_construction();
  test_cells_that_lack_groups_of_layers();
  test_many_sequences_over_one_trunk();
}
