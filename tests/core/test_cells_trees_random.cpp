// Cells against what it must preserve, over random histories with a byte layer that holds one id per cell.
#include <algorithm>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <vector>

#include "core/cells.h"
#include "core/errors.h"
#include "core/naive_tree.h"
#include "core/steps.h"
#include "cpp/check.h"

using namespace agentkv;
using testing::Id;
using testing::NaiveTree;

namespace {

struct LayerFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Counts {
  int tree_plans = 0, contiguous_plans = 0, compactions = 0, returns = 0, failed_moves = 0, levels = 0;
};

class History {
 public:
  History(std::uint32_t seed, Cell capacity, SeqId sequences, Counts& counts)
      : random_(seed),
        sequences_(sequences),
        cells_(capacity, sequences),
        naive_(sequences),
        bytes_(static_cast<std::size_t>(capacity), -1),
        counts_(counts) {
    cells_.set_mover([this](std::span<const Cell> src, std::span<const Cell> dst) { move(src, dst); });
  }

  void run(int verbs) {
    for (int i = 0; i < verbs; ++i) {
      switch (draw(0, 15)) {
        case 0:
          copy();
          break;
        case 1:
          remove();
          break;
        case 2:
          if (draw(0, 3) == 0) keep();
          break;
        case 3:
        case 4:
        case 5:
        case 6:
          propose();
          break;
        case 7:
        case 8:
        case 9:
          commit();
          break;
        case 10:
          if (draw(0, 4) == 0) {
            cells_.abort_step();
            naive_.withdraw();
          }
          break;
        default:
          step();
      }
      compare();
    }
  }

 private:
  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  SeqId any_sequence() { return draw(0, sequences_ - 1); }

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

  void move(std::span<const Cell> src, std::span<const Cell> dst) {
    CHECK(!src.empty());
    CHECK_EQ(src.size(), dst.size());
    ++counts_.compactions;
    const Cell window = cells_.read_window();
    for (std::size_t i = 0; i < src.size(); ++i) {
      CHECK(dst[i] < window);
      if (fail_moves_ && i == src.size() / 2) throw LayerFailed("no");
      bytes_[static_cast<std::size_t>(dst[i])] = bytes_[static_cast<std::size_t>(src[i])];
    }
  }

  void copy() {
    const SeqId src = any_sequence(), dst = any_sequence();
    const Pos length = naive_.at(src).length();
    const Pos p0 = draw(0, 3) == 0 ? draw(-1, length + 1) : 0, p1 = draw(0, 2) == 0 ? draw(-1, length + 1) : -1;
    both(naive_.copy(src, dst, p0, p1), [&] { cells_.seq_cp(src, dst, p0, p1); });
  }

  void remove() {
    const SeqId seq = any_sequence();
    const Pos length = naive_.at(seq).length();
    const Pos p0 = draw(-1, length + 1), p1 = draw(0, 2) == 0 ? draw(-1, length + 1) : -1;
    both(naive_.remove(seq, p0, p1), [&] { cells_.seq_rm(seq, p0, p1); });
  }

  void keep() {
    const SeqId seq = any_sequence();
    both(naive_.keep(seq), [&] { cells_.seq_keep(seq); });
  }

  void propose() {
    const SeqId seq = any_sequence();
    const auto first = static_cast<std::int32_t>(naive_.at(seq).nodes.size());
    if (first > 12) return;
    const bool path = draw(0, 2) == 0;
    std::vector<std::int32_t> parents;
    for (std::int32_t i = 0, n = draw(0, 6); i < n; ++i) {
      parents.push_back(path ? first + i - 1 : draw(0, 40) == 0 ? draw(-3, first + i + 2) : draw(-1, first + i - 1));
    }
    both(naive_.propose(seq, parents),
         [&] { cells_.propose(parents, static_cast<std::int32_t>(parents.size()), seq); });
  }

  void commit() {
    const SeqId seq = any_sequence();
    auto& sequence = naive_.at(seq);
    std::vector<std::int32_t> accepted;
    if (draw(0, 9) == 0) {
      for (int i = draw(0, 3); i > 0; --i) accepted.push_back(draw(-1, 8));
    } else if (sequence.live() > 0 && draw(0, 9) > 0) {
      for (std::int32_t node = draw(0, sequence.live() - 1); node >= 0;
           node = sequence.nodes[static_cast<std::size_t>(node)].parent) {
        accepted.insert(accepted.begin(), node);
      }
    }
    fail_moves_ = draw(0, 19) == 0;
    const auto len = static_cast<std::int32_t>(accepted.size());
    const bool lone = lone_and_contiguous(seq) && ascending_from_end(seq);
    try {
      const auto before = sequence;
      both(naive_.commit(seq, accepted), [&] { cells_.commit(accepted, len, seq); });
      if (lone && len > 0 && before.nodes.size() != sequence.nodes.size()) {
        CHECK_EQ(cells_.seq_runs(seq).size(), 1u);
        ++counts_.returns;
      }
    } catch (const LayerFailed&) {  // the model has committed; what is left is what was committed before
      for (int i = 0; i < len; ++i) sequence.tokens.erase(--sequence.end);
      ++counts_.failed_moves;
    }
    fail_moves_ = false;
  }

  bool lone_and_contiguous(SeqId seq) {
    const auto runs = cells_.seq_runs(seq);
    const bool contiguous = runs.empty() || (runs.size() == 1 && runs[0].position == 0 && runs[0].cell == 0);
    return contiguous && cells_.used() == cells_.seq_len(seq) + static_cast<Cell>(naive_.at(seq).live());
  }

  // Do the cells of the frontier follow each other from the sequence's end? So they do unless others ever held cells.
  bool ascending_from_end(SeqId seq) {
    Cell cell = cells_.seq_len(seq);
    for (const auto& node : naive_.at(seq).nodes) {
      if (node.id >= 0 && (cell >= cells_.capacity() || bytes_[static_cast<std::size_t>(cell++)] != node.id))
        return false;
    }
    return true;
  }

  void step() {
    // Sequences with every proposed node (or, rarely, a wrong number of rows), mixed in random order.
    std::vector<SeqId> rows;
    bool valid = true;
    for (SeqId seq = 0; seq < sequences_; ++seq) {
      auto& sequence = naive_.at(seq);
      const bool plain_fits = sequence.live() == 0;
      int n = sequence.proposed();
      if (n == 0 && (draw(0, 2) != 0 || !plain_fits)) continue;
      if (n > 0 && draw(0, 4) == 0) continue;  // it waits
      if ((plain_fits && draw(0, 2) == 0) || n == 0 || draw(0, 60) == 0) n += draw(1, 3);
      if (draw(0, 60) == 0) --n;
      if (n <= 0) continue;
      if (n < sequence.proposed() || (n > sequence.proposed() && !plain_fits)) valid = false;
      rows.insert(rows.end(), static_cast<std::size_t>(n), seq);
    }
    if (draw(0, 1) == 0) std::shuffle(rows.begin(), rows.end(), random_);
    const std::size_t used = naive_.owners().size();
    if (rows.empty() || rows.size() + used > bytes_.size()) valid = false;
    both(valid, [&] { cells_.begin_step(rows); });
    if (!valid) return;

    const StepPlan& plan = testing::plan(cells_);
    CHECK(plan.write_cells == lowest_free(rows.size()));
    const std::vector<Id> bytes = bytes_;
    NaiveTree after = naive_;
    std::vector<std::int32_t> node_of(rows.size(), -1);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const Id id = next_id_++;
      bytes_[static_cast<std::size_t>(plan.write_cells[row])] = id;
      auto& sequence = after.at(rows[row]);
      const auto later = std::count(rows.begin() + static_cast<std::ptrdiff_t>(row), rows.end(), rows[row]);
      if (later > sequence.proposed()) {  // rows before the nodes are plain
        CHECK_EQ(plan.positions[row], sequence.length());
        sequence.tokens[sequence.end++] = id;
      } else {
        node_of[row] = sequence.live();
        CHECK_EQ(plan.positions[row], sequence.length() + sequence.depth(node_of[row]));
        sequence.nodes[static_cast<std::size_t>(node_of[row])].id = id;
      }
    }
    for (std::size_t row = 0; row < rows.size(); ++row) compare_row(plan, row, after, rows[row], node_of[row]);
    counts_.tree_plans += !plan.tails.empty();
    counts_.contiguous_plans += plan.kind == StepPlan::Kind::SingleContiguous;
    if (plan.kind == StepPlan::Kind::SingleContiguous) {
      CHECK(std::count(rows.begin(), rows.end(), rows[0]) == static_cast<std::ptrdiff_t>(rows.size()));
      for (std::size_t row = 0; row < rows.size(); ++row) CHECK_EQ(plan.positions[row], plan.write_cells[row]);
    }
    if (draw(0, 5) == 0) {
      cells_.abort_step();
      bytes_ = bytes;
      naive_.withdraw();
      return;
    }
    for (std::size_t row = 0; row < rows.size(); ++row) {
      counts_.levels += node_of[row] > 0 && naive_.at(rows[row]).live() > 0;
    }
    naive_ = after;
    cells_.commit_step();
  }

  void compare_row(const StepPlan& plan, std::size_t row, NaiveTree& after, SeqId seq, std::int32_t node) {
    std::map<Pos, Id> seen = node >= 0 ? after.seen_by_node(seq, node) : after.at(seq).tokens;
    std::erase_if(seen, [&](const auto& token) { return token.first > plan.positions[row]; });
    // As runs: in position order, each position once.
    std::vector<std::pair<Pos, Id>> shown;
    const auto add = [&](const Run& run, Pos limit) {
      for (Cell i = 0; i < run.length && run.position + i <= limit; ++i) {
        CHECK(run.cell + i < plan.read_len);
        shown.emplace_back(run.position + i, bytes_[static_cast<std::size_t>(run.cell + i)]);
      }
    };
    for (const Run& run : plan.view(plan.row_view[row])) add(run, plan.row_limit[row]);
    for (const Run& run : plan.tail(static_cast<std::int32_t>(row))) add(run, plan.positions[row]);
    CHECK((shown == std::vector<std::pair<Pos, Id>>(seen.begin(), seen.end())));
    // As a mask.
    const Pos window = draw(0, 1) * draw(1, 6), sinks = draw(0, 1) * draw(1, 2);
    const std::vector<std::uint8_t> mask = plan.mask(window, sinks);
    std::set<Id> expected, masked;
    for (const auto& [position, id] : seen) {
      if (window == 0 || position > plan.positions[row] - window || position < sinks) expected.insert(id);
    }
    for (Cell cell = 0; cell < plan.read_len; ++cell) {
      if (mask[row * static_cast<std::size_t>(plan.read_len) + static_cast<std::size_t>(cell)] != 0) {
        masked.insert(bytes_[static_cast<std::size_t>(cell)]);
      }
    }
    CHECK((masked == expected));
  }

  std::vector<Cell> lowest_free(std::size_t n) {
    const auto owned = naive_.owners();
    std::vector<Cell> free;
    for (Cell cell = 0; cell < cells_.capacity() && free.size() < n; ++cell) {
      if (!holds(cell, owned)) free.push_back(cell);
    }
    return free;
  }

  // Moved ids leave their bytes behind in cells that are free now: a cell counts once, where the bookkeeping says it
  // is.
  bool holds(Cell cell, const std::map<Id, std::int32_t>& owned) {
    const Id id = bytes_[static_cast<std::size_t>(cell)];
    return owned.contains(id) && cell_of(id) == cell;
  }

  Cell cell_of(Id id) {
    for (SeqId seq = 0; seq < sequences_; ++seq) {
      for (const Run& run : cells_.seq_runs(seq)) {
        for (Cell cell = run.cell; cell < run.cell + run.length; ++cell) {
          if (bytes_[static_cast<std::size_t>(cell)] == id) return cell;
        }
      }
    }
    for (Cell cell = 0; cell < cells_.capacity(); ++cell) {  // a draft node: never moved before it is committed
      if (bytes_[static_cast<std::size_t>(cell)] == id) return cell;
    }
    return -1;
  }

  void compare() {
    cells_.check_owners();
    const auto owners = naive_.owners();
    CHECK_EQ(cells_.used(), static_cast<Cell>(owners.size()));
    const auto shared = std::count_if(owners.begin(), owners.end(), [](const auto& owner) { return owner.second > 1; });
    CHECK_EQ(cells_.shared(), static_cast<Cell>(shared));
    for (SeqId seq = 0; seq < sequences_; ++seq) {
      const auto& sequence = naive_.at(seq);
      CHECK_EQ(cells_.seq_len(seq), sequence.length());
      CHECK_EQ(cells_.frontier_size(seq), static_cast<std::int32_t>(sequence.nodes.size()));
      std::map<Pos, Id> held;
      for (const Run& run : cells_.seq_runs(seq)) {
        for (Cell i = 0; i < run.length; ++i) {
          held[run.position + i] = bytes_[static_cast<std::size_t>(run.cell + i)];
        }
      }
      CHECK((held == sequence.tokens));
    }
  }

  std::mt19937 random_;
  SeqId sequences_;
  Cells cells_;
  NaiveTree naive_;
  std::vector<Id> bytes_;  // [capacity] the id that was written or moved there last
  Id next_id_ = 0;
  bool fail_moves_ = false;
  Counts& counts_;
};

}  // namespace

int main() {
  Counts counts;
  for (std::uint32_t seed = 0; seed < 160; ++seed) {
    History(seed, seed % 4 == 0 ? 30 : 120, static_cast<SeqId>(1 + seed % 5), counts).run(250);
  }
  std::printf("tree plans %d, contiguous %d, compactions %d, returns %d, failed moves %d, deeper levels %d\n",
              counts.tree_plans, counts.contiguous_plans, counts.compactions, counts.returns, counts.failed_moves,
              counts.levels);
  CHECK(counts.tree_plans > 500 && counts.contiguous_plans > 300 && counts.compactions > 200);
  CHECK(counts.returns > 50 && counts.failed_moves > 10 && counts.levels > 300);
}
