// Retention: cells of closed sequences stay, are found by their tokens, and leave when somebody needs them.
#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/cells.h"
#include "core/errors.h"
#include "core/prefix_tree.h"
#include "core/steps.h"
#include "cpp/check.h"

using namespace agentkv;
using namespace agentkv::testing;

namespace {

using Tokens = std::vector<std::int32_t>;

// Sequences of tokens over Cells; every cell remembers the history that it was computed for.
class Histories {
 public:
  Histories(Cell capacity, SeqId sequences, Cell most)
      : cells(capacity, sequences),
        logs(static_cast<std::size_t>(sequences)),
        written(static_cast<std::size_t>(capacity)) {
    cells.set_retention(most);
    cells.set_mover([this](std::span<const Cell> src, std::span<const Cell> dst) {
      for (std::size_t i = 0; i < src.size(); ++i) {
        written[static_cast<std::size_t>(dst[i])] = std::exchange(written[static_cast<std::size_t>(src[i])], {});
      }
    });
  }

  Tokens& log(SeqId seq) { return logs[static_cast<std::size_t>(seq)]; }

  void extend(SeqId seq, const Tokens& tokens) {
    const StepPlan done = step(cells, std::vector<SeqId>(tokens.size(), seq));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      log(seq).push_back(tokens[i]);
      written[static_cast<std::size_t>(done.write_cells[i])] = log(seq);
    }
  }

  Pos recall(SeqId seq, const Tokens& tokens) {
    const Pos length = cells.seq_recall(seq, tokens);
    CHECK_EQ(length, cells.seq_len(seq));
    log(seq).assign(tokens.begin(), tokens.begin() + length);
    return length;
  }

  void close(SeqId seq) {
    cells.seq_retain(seq, log(seq));
    if (!log(seq).empty()) cells.seq_rm(seq);
    log(seq).clear();
  }

  // Every position of every sequence lies in a cell that was computed for this very beginning.
  void check() {
    for (SeqId seq = 0; seq < cells.max_sequences(); ++seq) {
      const Tokens& tokens = log(seq);
      CHECK_EQ(cells.seq_len(seq), static_cast<Pos>(tokens.size()));
      for (const Run& run : cells.seq_runs(seq)) {
        for (Cell i = 0; i < run.length; ++i) {
          const Tokens& had = written[static_cast<std::size_t>(run.cell + i)];
          CHECK(had == Tokens(tokens.begin(), tokens.begin() + run.position + i + 1));
        }
      }
    }
    CHECK(cells.used() + cells.retained() <= cells.capacity());
    CHECK_EQ(cells.can_extend(cells.capacity() - cells.used()), true);
  }

  Cells cells;
  std::vector<Tokens> logs;
  std::vector<Tokens> written;
};

void what_was_closed_is_found_again() {
  Histories histories(64, 4, 64);
  histories.extend(0, {1, 2, 3, 4, 5});
  histories.close(0);
  CHECK_EQ(histories.cells.used(), 0);
  CHECK_EQ(histories.cells.retained(), 5);
  const Tokens asked = {1, 2, 3, 9};
  CHECK_EQ(histories.cells.find_retained(asked), 3);
  CHECK_EQ(histories.recall(1, asked), 3);
  CHECK_EQ(histories.cells.used(), 3);
  CHECK_EQ(histories.cells.retained(), 2);
  histories.extend(1, {9, 9});
  histories.close(1);  // the edge is split where the two differ
  CHECK_EQ(histories.cells.retained(), 7);
  CHECK_EQ(histories.recall(2, (Tokens{1, 2, 3, 9, 9, 9})), 5);
  CHECK_EQ(histories.recall(3, (Tokens{1, 2, 3, 4, 5})), 5);
  CHECK_EQ(histories.cells.retained(), 0);
  CHECK_EQ(histories.cells.shared(), 3);
  histories.check();
  CHECK_EQ(histories.recall(0, (Tokens{2})), 0);
}

void what_was_used_longest_ago_leaves_first_and_from_its_end() {
  Histories histories(16, 4, 16);
  histories.extend(0, {1, 1, 1, 1, 1, 1});
  histories.close(0);
  histories.extend(0, {2, 2, 2, 2, 2, 2});
  histories.close(0);
  histories.recall(0, {1, 1, 1, 1, 1, 1});
  histories.close(0);
  histories.extend(0, {3, 3, 3, 3, 3, 3});  // needs two cells more than are free
  CHECK_EQ(histories.cells.find_retained((Tokens{2, 2, 2, 2, 2, 2})), 4);
  CHECK_EQ(histories.cells.find_retained((Tokens{1, 1, 1, 1, 1, 1})), 6);
  histories.check();
}

// A beginning that is used stays longer than what goes on from it, and than what is older.
void a_beginning_is_as_new_as_its_last_use() {
  Histories histories(12, 4, 12);
  for (const std::int32_t end : {5, 6}) {
    histories.recall(0, {1, 1, 1, 1});
    histories.extend(0, histories.log(0).empty() ? Tokens{1, 1, 1, 1, end} : Tokens{end});
    histories.close(0);
  }
  histories.extend(0, {2, 2, 2, 2});
  histories.close(0);
  histories.recall(0, {1, 1, 1, 1});  // and nothing behind it
  histories.close(0);
  histories.extend(0, {3, 3, 3, 3, 3, 3});  // takes both ends, and two cells more than are free then
  CHECK_EQ(histories.cells.find_retained((Tokens{1, 1, 1, 1, 5})), 4);
  CHECK_EQ(histories.cells.find_retained((Tokens{1, 1, 1, 1, 6})), 4);
  CHECK_EQ(histories.cells.find_retained((Tokens{2, 2, 2, 2})), 2);
  histories.check();
}

void a_bound_holds_for_what_nobody_owns() {
  Histories histories(32, 4, 4);
  histories.extend(0, {1, 2, 3, 4, 5, 6});
  histories.close(0);
  CHECK_EQ(histories.cells.retained(), 4);
  CHECK_EQ(histories.cells.find_retained((Tokens{1, 2, 3, 4, 5, 6})), 4);
  histories.cells.set_retention(0);
  CHECK_EQ(histories.cells.retained(), 0);
  histories.extend(0, {1, 2});
  histories.close(0);
  CHECK_EQ(histories.cells.retained(), 0);
  CHECK_THROWS(histories.cells.set_retention(-1), InvalidRange);
}

// Where histories end or part, the last positions are those of the path.
void ends_of_what_is_retained() {
  Histories histories(64, 4, 64);
  CHECK(histories.cells.retained_ends(3).empty());
  histories.extend(0, {1, 2, 3, 4, 5, 6});
  histories.close(0);
  histories.recall(0, {1, 2, 3, 4});
  histories.extend(0, {9});
  const RunList shared(histories.cells.seq_runs(0).begin(), histories.cells.seq_runs(0).end());
  histories.close(0);
  const auto ends = histories.cells.retained_ends(3);
  std::vector<std::pair<Pos, Pos>> positions;
  for (const RunList& runs : ends) positions.emplace_back(runs.front().position, end_position(runs));
  std::sort(positions.begin(), positions.end());
  CHECK(positions == (std::vector<std::pair<Pos, Pos>>{{1, 4}, {2, 5}, {3, 6}}));
  const auto longest = histories.cells.retained_ends(50);
  CHECK_EQ(longest.size(), 3u);
  CHECK(std::find(longest.begin(), longest.end(), shared) != longest.end());
}

// A history that came again with cells that lack nothing leaves these to the next one.
void cells_that_lack_less_take_the_place_of_others() {
  Histories histories(64, 4, 64);
  const Tokens tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  histories.extend(0, tokens);
  histories.cells.seq_discard(0, 0, 6, 1);
  histories.close(0);
  histories.extend(0, {1, 2, 3, 4, 5, 9});  // computed anew: nobody recalled it
  histories.cells.seq_discard(0, 0, 2, 1);
  histories.close(0);
  CHECK_EQ(histories.cells.retained(), 9);
  histories.recall(1, tokens);
  histories.check();
  std::vector<int> lacks;
  for (const Run& run : histories.cells.seq_runs(1)) {
    for (Cell i = 0; i < run.length; ++i)
      lacks.push_back(histories.cells.lacks()[static_cast<std::size_t>(run.cell + i)]);
  }
  CHECK(lacks == (std::vector<int>{1, 1, 0, 0, 0, 1, 0, 0}));
  histories.close(1);
  histories.cells.set_retention(0);
  CHECK_EQ(histories.cells.used() + histories.cells.retained(), 0);
}

void wrong_calls_change_nothing() {
  Histories histories(32, 4, 32);
  histories.extend(0, {1, 2, 3});
  CHECK_THROWS(histories.cells.seq_retain(0, (Tokens{1, 2, 3, 4})), InvalidRange);
  CHECK_THROWS(histories.cells.seq_retain(7, (Tokens{1})), UnknownSequence);
  histories.cells.seq_retain(0, histories.log(0));
  CHECK_EQ(histories.recall(0, (Tokens{1, 2, 3})), 3);  // all of it is there already
  CHECK_THROWS(histories.cells.seq_recall(-1, (Tokens{1, 2})), UnknownSequence);
  histories.cells.seq_rm(0, 1, 2);  // a hole
  CHECK_THROWS(histories.cells.seq_retain(0, (Tokens{1, 2, 3})), InvalidRange);
  histories.cells.begin_step(std::vector<SeqId>{1});
  CHECK_THROWS(histories.cells.seq_retain(0, (Tokens{1})), InvalidStep);
  CHECK_THROWS(histories.cells.seq_recall(2, (Tokens{1})), InvalidStep);
  histories.cells.abort_step();
  histories.cells.clear();
  CHECK_EQ(histories.cells.retained(), 0);
  CHECK_EQ(histories.cells.find_retained((Tokens{1})), 0);
}

void cells_move_together() {
  Histories histories(64, 4, 8);
  for (SeqId seq = 0; seq < 3; ++seq) histories.extend(seq, {1, 2, seq, 4, 5, 6, 7, 8, 9, 10});
  histories.cells.seq_cp(2, 3, 0, 4);
  histories.log(3).assign(histories.log(2).begin(), histories.log(2).begin() + 4);
  histories.close(0);
  histories.close(1);
  CHECK_EQ(histories.cells.used(), 10);
  CHECK_EQ(histories.cells.retained(), 8);
  CHECK_EQ(histories.cells.read_window(), 30);
  CHECK_THROWS(
      [&] {
        histories.cells.set_mover([](auto, auto) { throw OutOfMemory("no"); });
        histories.cells.compact();
      }(),
      OutOfMemory);
  histories.check();  // as before
  histories.cells.set_mover({});
  CHECK_EQ(histories.cells.compact(), 0);
  Histories again(64, 4, 8);
  CHECK_EQ(again.cells.compact(), 0);
}

// Random histories over few tokens. While nothing had to leave, exactly the longest known beginning is found.
void random_histories(unsigned seed, Cell capacity, Cell most, int verbs) {
  std::mt19937 random(seed);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Histories histories(capacity, 6, most);
  std::vector<Tokens> closed;
  Pos found_in_all = 0;
  for (int i = 0; i < verbs; ++i) {
    const SeqId seq = pick(6);
    if (histories.log(seq).empty() && pick(2) == 0) {
      Tokens asked =
          closed.empty() ? Tokens{} : closed[static_cast<std::size_t>(pick(static_cast<int>(closed.size())))];
      if (!asked.empty()) asked.resize(static_cast<std::size_t>(pick(static_cast<int>(asked.size())) + 1));
      for (int more = pick(4); more > 0; --more) asked.push_back(pick(3));
      std::size_t longest = 0;
      for (const Tokens& other : closed) {
        const auto same = std::mismatch(other.begin(), other.end(), asked.begin(), asked.end()).first - other.begin();
        longest = std::max(longest, static_cast<std::size_t>(same));
      }
      const Pos found = histories.recall(seq, asked);
      CHECK(found <= static_cast<Pos>(longest));
      if (capacity > 3000 && most == capacity) CHECK_EQ(found, static_cast<Pos>(longest));
      found_in_all += found;
    } else if (pick(4) == 0) {
      if (!histories.log(seq).empty()) closed.push_back(histories.log(seq));
      histories.close(seq);
    } else if (pick(5) == 0 && !histories.log(seq).empty()) {
      const int length = pick(static_cast<int>(histories.log(seq).size()));
      histories.cells.seq_rm(seq, length);
      histories.log(seq).resize(static_cast<std::size_t>(length));
    } else {
      Tokens tokens(static_cast<std::size_t>(1 + pick(5)));
      for (auto& token : tokens) token = pick(3);
      const Cell free = histories.cells.capacity() - histories.cells.used();
      if (static_cast<Cell>(tokens.size()) <= free) {
        histories.extend(seq, tokens);  // whatever is retained is no reason to refuse
      } else {
        CHECK_THROWS(histories.extend(seq, tokens), CacheFull);
      }
    }
    CHECK(histories.cells.retained() <= most);
    if (i % 50 == 0) {
      histories.cells.compact();
      CHECK_EQ(histories.cells.read_window(), histories.cells.used() + histories.cells.retained());
    }
    if (i % 16 == 0) histories.check();
  }
  histories.check();
  CHECK(found_in_all > 0);
}

}  // namespace

int main(int argc, char** argv) {
  what_was_closed_is_found_again();
  what_was_used_longest_ago_leaves_first_and_from_its_end();
  a_beginning_is_as_new_as_its_last_use();
  a_bound_holds_for_what_nobody_owns();
  ends_of_what_is_retained();
  cells_that_lack_less_take_the_place_of_others();
  wrong_calls_change_nothing();
  cells_move_together();
  const int verbs = argc > 1 ? std::stoi(argv[1]) : 4000;
  for (unsigned seed = 0; seed < 4; ++seed) {
    random_histories(seed, 40, 40, verbs);
    random_histories(seed, 200, 50, verbs);
    random_histories(seed, 40000, 40000, 2000);
  }
}
