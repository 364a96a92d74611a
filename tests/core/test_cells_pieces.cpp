// seq_grow, seq_map and seq_shared: cells of rows that no forward computed.
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "core/cells.h"
#include "core/errors.h"
#include "core/steps.h"
#include "cpp/check.h"

using namespace agentkv;
using testing::runs_of;
using testing::step;

using Runs = std::vector<Run>;
using Pieces = std::vector<Piece>;

namespace {

std::vector<SeqId> rows(SeqId seq, std::size_t n) { return std::vector<SeqId>(n, seq); }

void test_growing_takes_the_lowest_free_cells() {
  Cells cells(8);
  step(cells, rows(0, 2));
  step(cells, rows(1, 1));
  step(cells, rows(0, 1));
  cells.seq_rm(1);
  cells.seq_grow(2, 3);
  CHECK_EQ(runs_of(cells, 2), (Runs{{0, 2, 1}, {1, 4, 2}}));
  CHECK_EQ(cells.used(), 6);
  cells.seq_grow(2, 0);
  CHECK_THROWS(cells.seq_grow(2, 3), CacheFull, "2 of 8 cells are free");
  CHECK_THROWS(cells.seq_grow(2, -1), InvalidRange);
  CHECK_THROWS(cells.seq_grow(300, 1), UnknownSequence);
  CHECK_EQ(cells.seq_len(2), 3);
  CHECK_EQ(step(cells, {2}).positions, std::vector<Pos>{3});
}

void test_growing_in_a_run() {
  Cells cells(32);
  cells.set_retention(32);
  step(cells, rows(0, 3));
  step(cells, rows(1, 20));
  std::vector<std::int32_t> tokens(20);
  cells.seq_retain(1, tokens);
  cells.seq_rm(1);
  CHECK_EQ(cells.retained(), 20);
  CHECK(cells.seq_grow_run(2, 8, 8));
  CHECK_EQ(runs_of(cells, 2), (Runs{{0, 24, 8}}));
  CHECK_EQ(cells.retained(), 20);
  CHECK(!cells.seq_grow_run(3, 21, 8));
  CHECK_EQ(cells.retained(), 20);
  CHECK(cells.seq_grow_run(3, 12, 4));  // what is retained makes room
  CHECK_EQ(runs_of(cells, 3), (Runs{{0, 12, 12}}));
  CHECK(cells.retained() <= 9);
  CHECK(cells.seq_grow_run(3, 1, 1));
  CHECK_EQ(cells.seq_len(3), 13);
  CHECK_THROWS(cells.seq_grow_run(3, 0, 1), InvalidRange);
  CHECK_THROWS(cells.seq_grow_run(3, 1, 0), InvalidRange);
  CHECK_THROWS(cells.seq_grow_run(300, 1, 1), UnknownSequence);
}

void test_pieces_lie_elsewhere() {
  Cells cells(16);
  step(cells, rows(0, 6));
  const Pieces pieces = {{4, 0, 2}, {0, 2, 3}};
  cells.seq_map(0, 1, pieces);
  CHECK_EQ(runs_of(cells, 1), (Runs{{0, 4, 2}, {2, 0, 3}}));
  CHECK_EQ(cells.shared(), 5);
  CHECK_EQ(cells.seq_shared(0), 6);
  cells.seq_rm(0);
  CHECK_EQ(cells.used(), 5);
  CHECK_EQ(cells.seq_shared(1), 0);
  const Pieces back = {{0, 4, 2}};
  cells.seq_map(1, 2, back);
  CHECK_EQ(runs_of(cells, 2), (Runs{{4, 4, 2}}));
  CHECK_EQ(cells.seq_shared(1), 2);
}

void test_bad_pieces_change_nothing() {
  Cells cells(16);
  step(cells, rows(0, 6));
  step(cells, rows(1, 2));
  step(cells, rows(3, 3));
  cells.seq_rm(3, 1, 2);  // a hole
  const std::vector<std::pair<SeqId, Pieces>> bad = {
      {0, {{5, 2, 2}}},             // beyond src
      {0, {{-1, 2, 2}}},            // before it
      {0, {{0, 1, 2}}},             // over what dst has
      {0, {{0, 2, 2}, {4, 3, 2}}},  // over each other
      {0, {{0, 2, 3}, {2, 9, 2}}},  // a cell twice
      {0, {{0, 2, 0}}},             // nothing
      {0, {{0, 2, -1}}},            // less
      {0, {{0, 2147483646, 2}}},    // no positions
      {0, {{0, 2, 2147483647}}},    // too long
      {3, {{0, 2, 3}}},
      {3, {{1, 2, 1}}},  // the hole
  };
  for (const auto& [src, pieces] : bad) {
    CHECK_THROWS(cells.seq_map(src, 1, pieces), InvalidRange, "seq_map");
    CHECK_EQ(cells.seq_len(1), 2);
    CHECK_EQ(cells.shared(), 0);
  }
  CHECK_THROWS(cells.seq_map(1, 1, Pieces{{0, 2, 2}}), InvalidRange, "into itself");
  CHECK_THROWS(cells.seq_map(0, 300, Pieces{{0, 0, 2}}), UnknownSequence);
  cells.begin_step(rows(0, 1));
  CHECK_THROWS(cells.seq_map(0, 1, Pieces{{0, 2, 2}}), InvalidStep);
  CHECK_THROWS(cells.seq_grow(1, 1), InvalidStep);
}

// Against maps of what each sequence holds where.
void test_random_pieces(unsigned seed) {
  std::mt19937 random(seed);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  constexpr SeqId kSequences = 5;
  Cells cells(24, kSequences);
  std::map<SeqId, std::map<Pos, Cell>> naive;
  std::map<SeqId, Pos> ends;
  const auto end = [&](SeqId seq) { return ends[seq]; };
  const auto owners = [&](Cell cell) {
    int count = 0;
    for (const auto& [seq, held] : naive) {
      for (const auto& [position, at] : held) count += at == cell;
    }
    return count;
  };
  for (int round = 0; round < 400; ++round) {
    const SeqId src = draw(0, kSequences - 1), dst = draw(0, kSequences - 1);
    if (draw(0, 2) == 0) {
      const int n = draw(0, 5);
      std::vector<Cell> free;
      for (Cell cell = 0; cell < 24; ++cell) {
        if (owners(cell) == 0) free.push_back(cell);
      }
      if (n > static_cast<int>(free.size())) {
        CHECK_THROWS(cells.seq_grow(src, n), CacheFull);
      } else {
        cells.seq_grow(src, n);
        const Pos from = end(src);
        for (int i = 0; i < n; ++i) naive[src][from + i] = free[static_cast<std::size_t>(i)];
        ends[src] += n;
      }
    } else if (draw(0, 2) > 0) {
      Pieces pieces;
      for (int i = draw(1, 3); i > 0; --i) pieces.push_back({draw(0, 8), draw(0, 12), draw(1, 3)});
      std::map<Pos, Cell> added;
      bool good = src != dst;
      Pos at = end(dst);
      std::set<Pos> taken;
      for (const Piece& piece : pieces) {
        good = good && piece.to >= at;
        at = piece.to + piece.length;
        for (Pos i = 0; i < piece.length; ++i) {
          good = good && naive[src].contains(piece.from + i) && taken.insert(piece.from + i).second;
          if (good) added[piece.to + i] = naive[src][piece.from + i];
        }
      }
      if (good) {
        cells.seq_map(src, dst, pieces);
        naive[dst].insert(added.begin(), added.end());
        ends[dst] = at;
      } else {
        CHECK_THROWS(cells.seq_map(src, dst, pieces), InvalidRange);
      }
    } else if (end(src) > 0) {
      const Pos from = draw(0, end(src));
      cells.seq_rm(src, from);
      naive[src].erase(naive[src].lower_bound(from), naive[src].end());
      ends[src] = from;
    }
    for (SeqId seq = 0; seq < kSequences; ++seq) {
      std::map<Pos, Cell> held;
      for (const Run& run : cells.seq_runs(seq)) {
        for (Cell i = 0; i < run.length; ++i) held[run.position + i] = run.cell + i;
      }
      CHECK(held == naive[seq]);
      Pos shared = 0;
      for (const auto& [position, cell] : held) {
        if (owners(cell) > 1) shared = position + 1;
      }
      CHECK_EQ(cells.seq_shared(seq), shared);
    }
  }
}

}  // namespace

int main() {
  test_growing_takes_the_lowest_free_cells();
  test_growing_in_a_run();
  test_pieces_lie_elsewhere();
  test_bad_pieces_change_nothing();
  for (unsigned seed = 0; seed < 50; ++seed) test_random_pieces(seed);
}
