// Cells against a set-based model, over random histories.
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "core/cells.h"
#include "core/errors.h"
#include "core/naive_cells.h"
#include "core/steps.h"
#include "cpp/check.h"

using namespace agentkv;
using testing::NaiveCells;

namespace {

class History {
 public:
  History(std::uint32_t seed, Cell capacity, SeqId sequences)
      : random_(seed), sequences_(sequences), cells_(capacity, sequences), naive_(capacity) {}

  void run(int verbs) {
    for (int i = 0; i < verbs; ++i) {
      switch (draw(0, 9)) {
        case 0:
        case 1:
          copy();
          break;
        case 2:
        case 3:
          remove();
          break;
        case 4:
          if (draw(0, 5) == 0) keep();
          break;
        default:
          step();
      }
      compare();
    }
  }

  int contiguous_steps() const { return contiguous_steps_; }

 private:
  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  SeqId any_sequence() { return draw(0, 40) == 0 ? draw(-1, sequences_) : draw(0, sequences_ - 1); }

  // Refused by both or done by both.
  template <class Native>
  void both(bool naive_done, Native native) {
    bool done = true;
    try {
      native();
    } catch (const Error&) {
      done = false;
    }
    CHECK_EQ(done, naive_done);
  }

  void copy() {
    const SeqId src = any_sequence(), dst = any_sequence();
    const Pos length = known(src) ? naive_.length(src) : 0;
    const Pos p0 = draw(0, 2) == 0 ? draw(-1, length + 1) : 0, p1 = draw(0, 1) == 0 ? draw(-1, length + 1) : -1;
    both(known(src) && known(dst) && naive_.copy(src, dst, p0, p1), [&] { cells_.seq_cp(src, dst, p0, p1); });
  }

  void remove() {
    const SeqId seq = any_sequence();
    const Pos length = known(seq) ? naive_.length(seq) : 0;
    const Pos p0 = draw(-1, length + 1), p1 = draw(0, 1) == 0 ? draw(-1, length + 1) : -1;
    both(known(seq) && naive_.remove(seq, p0, p1), [&] { cells_.seq_rm(seq, p0, p1); });
  }

  void keep() {
    const SeqId seq = any_sequence();
    both(known(seq) && naive_.keep(seq), [&] { cells_.seq_keep(seq); });
  }

  void step() {
    std::vector<SeqId> rows;
    const int n = draw(1, 6), one = draw(0, 2);
    const SeqId first = any_sequence();
    for (int i = 0; i < n; ++i) rows.push_back(one == 0 ? first : any_sequence());
    bool valid = static_cast<std::size_t>(n) <= naive_.cells.size() - static_cast<std::size_t>(naive_.count(1));
    for (const SeqId seq : rows) valid = valid && known(seq);
    both(valid, [&] { cells_.begin_step(rows); });
    if (!valid) return;

    std::vector<Pos> positions;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto earlier = std::count(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(i), rows[i]);
      positions.push_back(naive_.length(rows[i]) + static_cast<Pos>(earlier));
    }
    if (draw(0, 9) == 0) {  // aborted before its forward
      cells_.abort_step();
      return;
    }
    const StepPlan& plan = testing::plan(cells_);
    CHECK(plan.positions == positions);
    CHECK(plan.write_cells == naive_.lowest_free(rows.size()));
    compare_plan(plan, rows);
    if (draw(0, 4) == 0) {
      cells_.abort_step();
      return;
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      naive_.put(plan.write_cells[i], positions[i], rows[i]);
    }
    cells_.commit_step();
  }

  void compare_plan(const StepPlan& plan, const std::vector<SeqId>& rows) {
    NaiveCells after = naive_;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      after.put(plan.write_cells[i], plan.positions[i], rows[i]);
    }
    const Pos window = draw(0, 1) * draw(1, 8), sinks = draw(0, 1) * draw(1, 3);
    const std::vector<std::uint8_t> mask = plan.mask(window, sinks);
    Cell highest = -1;
    bool contiguous = true;
    for (std::size_t row = 0; row < rows.size(); ++row) {
      for (Cell cell = 0; cell < cells_.capacity(); ++cell) {
        const auto& naive = after.cells[static_cast<std::size_t>(cell)];
        const bool mine = naive.owners.contains(rows[row]);
        if (mine) highest = std::max(highest, cell);
        contiguous = contiguous && rows[row] == rows[0] && (!mine || naive.position == cell);
        const bool visible = mine && NaiveCells::near(plan.positions[row], naive.position, window, sinks);
        const bool shown = cell < plan.read_len &&
                           mask[row * static_cast<std::size_t>(plan.read_len) + static_cast<std::size_t>(cell)] != 0;
        CHECK_EQ(shown, visible);
      }
    }
    CHECK_EQ(plan.read_len, highest + 1);
    contiguous = contiguous && static_cast<Cell>(after.held(rows[0]).size()) == plan.read_len;
    CHECK_EQ(plan.kind == StepPlan::Kind::SingleContiguous, contiguous);
    contiguous_steps_ += contiguous;
  }

  void compare() {
    cells_.check_owners();
    CHECK_EQ(cells_.used(), naive_.count(1));
    CHECK_EQ(cells_.shared(), naive_.count(2));
    CHECK_EQ(cells_.read_window(), naive_.window());
    SeqId live = 0;
    for (SeqId seq = 0; seq < sequences_; ++seq) {
      const auto held = naive_.held(seq);
      live += naive_.length(seq) > 0;
      CHECK_EQ(cells_.seq_len(seq), naive_.length(seq));
      auto at = held.begin();
      const auto runs = cells_.seq_runs(seq);
      for (std::size_t r = 0; r < runs.size(); ++r) {
        const bool canonical = r == 0 || runs[r - 1].position + runs[r - 1].length != runs[r].position ||
                               runs[r - 1].cell + runs[r - 1].length != runs[r].cell;
        CHECK(canonical);
        for (Cell i = 0; i < runs[r].length; ++i, ++at) {
          CHECK(at != held.end());
          CHECK_EQ(at->first, runs[r].position + i);
          CHECK_EQ(at->second, runs[r].cell + i);
        }
      }
      CHECK(at == held.end());
    }
    CHECK_EQ(cells_.live_sequences(), live);
  }

  bool known(SeqId seq) const { return 0 <= seq && seq < sequences_; }

  std::mt19937 random_;
  SeqId sequences_;
  Cells cells_;
  NaiveCells naive_;
  int contiguous_steps_ = 0;
};

}  // namespace

int main() {
  int contiguous_steps = 0;
  for (std::uint32_t seed = 0; seed < 120; ++seed) {
    History history(seed, seed % 3 == 0 ? 24 : 150, static_cast<SeqId>(2 + seed % 6));
    history.run(150);
    contiguous_steps += history.contiguous_steps();
  }
  CHECK(contiguous_steps > 100);  // both kinds of plan were met
}
