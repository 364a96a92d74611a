#include <memory>
#include <stdexcept>
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

using Nodes = std::vector<std::int32_t>;
using Runs = std::vector<Run>;
using Rows = std::vector<std::string>;

namespace {

// A byte layer that only writes down what it was told to move.
class Recorder final : public ByteLayer {
 public:
  std::string_view backend_id() const override { return "Recorder"; }
  std::size_t bytes() const override { return 0; }
  Cell allocated_cells() const override { return 1 << 20; }
  void move_cells(const Cell* src, const Cell* dst, std::size_t n) override {
    if (fails) throw std::runtime_error("no bytes");
    for (std::size_t i = 0; i < n; ++i) moves.emplace_back(src[i], dst[i]);
  }

  std::size_t cell_bytes() const override { return 0; }
  std::vector<CellArray> cell_arrays() const override { return {}; }
  void read_cells(std::span<const Cell>, std::span<std::byte>) const override {}
  void write_cells(std::span<const Cell>, std::span<const std::byte>) override {}

  std::vector<std::pair<Cell, Cell>> moves;
  bool fails = false;
};

struct Tree {
  explicit Tree(Cell capacity) : cells(capacity), layer(std::make_shared<Recorder>()) { cells.set_layer(layer); }

  void propose(const Nodes& parents, SeqId seq = 0) {
    cells.propose(parents, static_cast<std::int32_t>(parents.size()), seq);
  }
  void commit(const Nodes& accepted, SeqId seq = 0) {
    cells.commit(accepted, static_cast<std::int32_t>(accepted.size()), seq);
  }

  Cells cells;
  std::shared_ptr<Recorder> layer;
};

std::vector<SeqId> rows(SeqId seq, std::size_t n) { return std::vector<SeqId>(n, seq); }

void test_a_tree_in_one_step() {
  Tree t(16);
  step(t.cells, rows(0, 2));
  t.propose({-1, 0, 0, 2});
  CHECK_EQ(t.cells.used(), 2);
  const StepPlan plan = step(t.cells, rows(0, 4));
  CHECK(plan.kind == StepPlan::Kind::Explicit);
  CHECK_EQ(plan.positions, (std::vector<Pos>{2, 3, 3, 4}));
  CHECK_EQ(plan.row_limit, (std::vector<Pos>{1, 1, 1, 1}));
  CHECK_EQ(drawn(plan), (Rows{"###...", "####..", "###.#.", "###.##"}));
  CHECK_EQ(drawn(plan, 2), (Rows{".##...", "..##..", "..#.#.", "....##"}));
  CHECK_EQ(t.cells.seq_len(0), 2);
  CHECK_EQ(t.cells.used(), 6);

  t.commit({0, 2, 3});
  CHECK_EQ(runs_of(t.cells, 0), (Runs{{0, 0, 5}}));
  CHECK(t.layer->moves == (std::vector<std::pair<Cell, Cell>>{{4, 3}, {5, 4}}));
  CHECK_EQ(t.cells.used(), 5);
  CHECK(step(t.cells, {0}).kind == StepPlan::Kind::SingleContiguous);
}

void test_a_path_is_plain() {
  Tree t(16);
  step(t.cells, rows(0, 2));
  t.propose({-1, 0});
  StepPlan plan = step(t.cells, rows(0, 2));
  CHECK(plan.kind == StepPlan::Kind::SingleContiguous);
  CHECK(plan.tail_offsets.empty());
  t.propose({1});
  plan = step(t.cells, rows(0, 1));
  CHECK(plan.kind == StepPlan::Kind::SingleContiguous);
  CHECK_EQ(drawn(plan), Rows{"#####"});
  t.propose({0});  // it branches now
  plan = step(t.cells, rows(0, 1));
  CHECK(plan.kind == StepPlan::Kind::Explicit);
  CHECK_EQ(drawn(plan), Rows{"###..#"});
  t.commit({0, 1});
  CHECK(t.layer->moves.empty());
  CHECK_EQ(runs_of(t.cells, 0), (Runs{{0, 0, 4}}));
}

void test_levels_and_other_sequences() {
  Tree t(32);
  step(t.cells, rows(0, 3));
  t.cells.seq_cp(0, 1);
  t.cells.seq_cp(0, 2);
  t.propose({-1, -1}, 1);
  t.propose({-1, 0, 0}, 2);
  // A plain row of sequence 0 between the trees; sequence 2 has a plain row of its own before its nodes.
  const StepPlan plan = step(t.cells, {1, 2, 0, 2, 1, 2, 2});
  CHECK_EQ(plan.positions, (std::vector<Pos>{3, 3, 3, 4, 3, 5, 5}));
  CHECK_EQ(drawn(plan),
           (Rows{"####......", "###.#.....", "###..#....", "###.#.#...", "###....#..", "###.#.#.#.", "###.#.#..#"}));
  CHECK_EQ(t.cells.seq_len(2), 4);
  t.propose({1}, 1);
  CHECK_EQ(drawn(step(t.cells, {1})), Rows{"###....#..#"});
  t.commit({0, 2}, 2);  // cells 6 and 9 of 6, 8, 9
  CHECK_EQ(runs_of(t.cells, 2), (Runs{{0, 0, 3}, {3, 4, 1}, {4, 6, 1}, {5, 8, 1}}));
  t.commit({}, 1);
  CHECK_EQ(runs_of(t.cells, 1), (Runs{{0, 0, 3}}));
  CHECK_EQ(t.cells.used(), 7);
}

void test_abort() {
  Tree t(8);
  step(t.cells, rows(0, 2));
  t.propose({-1, -1});
  step(t.cells, rows(0, 2));
  t.propose({0, 1}, 0);
  t.propose({-1}, 1);
  t.cells.begin_step(rows(0, 2));
  testing::plan(t.cells);
  t.cells.abort_step();
  CHECK_EQ(t.cells.frontier_size(0), 2);  // the level that ran stays
  CHECK_EQ(t.cells.frontier_size(1), 0);  // what did not run is withdrawn
  CHECK_EQ(t.cells.used(), 4);
  CHECK_EQ(drawn([&] {
             t.propose({1});
             return step(t.cells, rows(0, 1));
           }()),
           Rows{"##.##"});
}

void test_verbs_of_a_sequence_with_a_frontier() {
  Tree t(16);
  step(t.cells, rows(0, 4));
  t.propose({-1, -1});
  step(t.cells, rows(0, 2));
  t.cells.seq_cp(0, 1);
  CHECK_EQ(t.cells.seq_len(1), 4);
  CHECK_EQ(t.cells.shared(), 4);
  t.cells.seq_rm(0, 1, 2);  // a hole keeps the frontier
  CHECK_EQ(t.cells.frontier_size(0), 2);
  t.cells.seq_rm(0, 3);  // what it hung from is gone
  CHECK_EQ(t.cells.frontier_size(0), 0);
  CHECK_EQ(t.cells.used(), 4);

  t.propose({-1}, 2);
  step(t.cells, {2});
  CHECK_EQ(t.cells.seq_len(2), 0);
  CHECK_EQ(t.cells.live_sequences(), 3);
  CHECK_THROWS(t.cells.seq_cp(0, 2), InvalidTree, "sequence 2", "1 nodes");
  t.cells.seq_rm(2);
  CHECK_EQ(t.cells.used(), 4);
  CHECK_EQ(t.cells.live_sequences(), 2);

  t.propose({-1, -1}, 0);
  t.propose({-1, -1}, 1);
  step(t.cells, {0, 1, 0, 1});
  t.cells.seq_keep(1);
  CHECK_EQ(t.cells.frontier_size(0), 0);
  CHECK_EQ(t.cells.frontier_size(1), 2);
  CHECK_EQ(t.cells.used(), 6);
  t.cells.clear();
  CHECK_EQ(t.cells.used(), 0);
  CHECK_EQ(t.cells.frontier_size(1), 0);
}

void test_refusals_change_nothing() {
  Tree t(8);
  step(t.cells, rows(0, 2));
  CHECK_THROWS(t.propose({0}), InvalidTree, "node 0", "parent 0");
  CHECK_THROWS(t.propose({-1, -2}), InvalidTree, "node 1", "parent -2", "[-1, 1)");
  CHECK_THROWS(t.propose({}), InvalidTree, "0 nodes");
  CHECK_THROWS(t.cells.propose(Nodes{-1}, 2, 0), InvalidTree, "2 nodes", "[1, 1]");
  CHECK_THROWS(t.propose({-1}, 256), UnknownSequence, "256");
  CHECK_EQ(t.cells.frontier_size(0), 0);

  t.propose({-1, 0, 0});
  CHECK_THROWS(t.cells.begin_step(rows(0, 2)), InvalidStep, "2 rows of sequence 0", "3 proposed");
  CHECK_THROWS(t.commit({0}), InvalidStep, "3 proposed nodes have not run");
  CHECK_THROWS(t.cells.begin_step(rows(0, 7)), CacheFull, "7 rows", "6 of 8");
  step(t.cells, rows(0, 3));
  CHECK_THROWS(t.cells.begin_step(rows(0, 1)), InvalidStep, "1 plain rows", "frontier of 3");
  CHECK_THROWS(t.commit({1}), InvalidTree, "node 1 follows node -1", "parent is 0");
  CHECK_THROWS(t.commit({0, 1, 2}), InvalidTree, "node 2 follows node 1", "parent is 0");
  CHECK_THROWS(t.commit({0, 3}), InvalidTree, "node 3", "[0, 3)");
  CHECK_THROWS(t.commit({-1}), InvalidTree, "node -1");
  CHECK_THROWS(t.cells.commit(Nodes{0}, 2, 0), InvalidTree, "2 nodes", "[0, 1]");
  CHECK_THROWS(t.commit({0}, 1), InvalidTree, "node 0", "[0, 0)");
  CHECK_EQ(t.cells.used(), 5);

  t.cells.begin_step(rows(1, 1));
  CHECK_THROWS(t.propose({0}), InvalidStep, "propose");
  CHECK_THROWS(t.commit({0}), InvalidStep, "commit");
  t.cells.abort_step();
}

void test_a_failed_move_drops_the_frontier() {
  Tree t(8);
  step(t.cells, rows(0, 2));
  t.propose({-1, -1});
  step(t.cells, rows(0, 2));
  t.layer->fails = true;
  CHECK_THROWS(t.commit({1}), std::runtime_error, "no bytes");
  CHECK_EQ(t.cells.used(), 2);
  CHECK_EQ(t.cells.frontier_size(0), 0);
}

void test_without_a_layer_nothing_moves() {
  Cells cells(8);
  step(cells, rows(0, 2));
  cells.propose(Nodes{-1, -1}, 2, 0);
  step(cells, rows(0, 2));
  cells.commit(Nodes{1}, 1, 0);
  CHECK_EQ(runs_of(cells, 0), (Runs{{0, 0, 2}, {2, 3, 1}}));
}

std::vector<Cell> compacted(const std::vector<Cell>& frontier, const std::vector<Cell>& chain, Cell next,
                            const std::vector<Cell>& taken = {}) {
  CellPool pool(32);
  for (const Cell cell : frontier) pool.take(cell);
  for (const Cell cell : taken) pool.take(cell);
  std::vector<Cell> target;
  const CellMoves moves = compact_chain(pool, frontier, chain, next, target);
  std::vector<Cell> bytes(32);
  for (Cell cell = 0; cell < 32; ++cell) bytes[static_cast<std::size_t>(cell)] = cell;
  for (std::size_t i = 0; i < moves.src.size(); ++i) {
    bytes[static_cast<std::size_t>(moves.dst[i])] = bytes[static_cast<std::size_t>(moves.src[i])];
  }
  for (std::size_t i = 0; i < chain.size(); ++i) CHECK_EQ(bytes[static_cast<std::size_t>(target[i])], chain[i]);
  return target;
}

void test_where_a_chain_goes() {
  using Cells = std::vector<Cell>;
  CHECK_EQ(compacted({4, 5, 6, 7}, {4, 7}, 4), (Cells{4, 5}));
  CHECK_EQ(compacted({6, 7, 8, 9}, {7, 9}, 4), (Cells{4, 5}));        // through free cells to its sequence
  CHECK_EQ(compacted({6, 7, 8, 9}, {7, 9}, 4, {4}), (Cells{6, 7}));   // the way is taken: the lowest of its own
  CHECK_EQ(compacted({6, 7, 8, 9}, {8, 9}, 4, {4}), (Cells{8, 9}));   // one run already
  CHECK_EQ(compacted({2, 9, 11}, {2, 11}, 20), (Cells{2, 9}));        // never above the frontier
  CHECK_EQ(compacted({2, 9, 10}, {2, 9, 10}, 8), (Cells{8, 9, 10}));  // a shift up into its own sources
  CHECK_EQ(compacted({5, 4}, {5, 4}, 4), (Cells{5, 4}));              // a circle stays
  CHECK_EQ(compacted({6, 5, 4, 3}, {6, 5, 4}, 3), (Cells{3, 5, 4}));  // a circle beside a move
  CHECK_EQ(compacted({3}, {}, 3), Cells{});
}

}  // namespace

int main() {
  test_a_tree_in_one_step();
  test_a_path_is_plain();
  test_levels_and_other_sequences();
  test_abort();
  test_verbs_of_a_sequence_with_a_frontier();
  test_refusals_change_nothing();
  test_a_failed_move_drops_the_frontier();
  test_without_a_layer_nothing_moves();
  test_where_a_chain_goes();
}
