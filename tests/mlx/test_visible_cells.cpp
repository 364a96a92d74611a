// Which cells a step's attention is given, and when it needs no mask.
#include <cstdint>
#include <vector>

#include "core/cells.h"
#include "cpp/check.h"
#include "mlx/owner.h"
#include "mlx/visible_cells.h"

using namespace agentkv;
using namespace agentkv::mlx;

namespace {

// Steps over one bookkeeping, and what the last layer of each would be given.
struct Steps {
  Cells cells{256};

  VisibleCells operator()(const std::vector<SeqId>& rows, Pos window = 0, Pos sinks = 0, Pos chunk = 0) {
    cells.begin_step(rows);
    const auto at = cells.step_positions();
    const std::vector<std::int64_t> positions(at.begin(), at.end());
    const StepPlan& plan = cells.plan(positions, 0);
    VisibleCells visible = visible_cells(plan, {window, sinks, chunk});
    check(plan, visible, plan.mask(window, sinks, chunk));
    check_distances(plan, visible.first);
    cells.commit_step();
    return visible;
  }

  // The mask is that of the plan, less columns that show nothing.
  static void check(const StepPlan& plan, const VisibleCells& visible, const std::vector<std::uint8_t>& want) {
    const int kept = plan.read_len - visible.first;
    for (int row = 0; row < plan.n_tokens(); ++row) {
      for (int cell = 0; cell < plan.read_len; ++cell) {
        const bool shown = want[static_cast<std::size_t>(row * plan.read_len + cell)] != 0;
        if (cell < visible.first) {
          CHECK(!shown);
        } else {
          CHECK_EQ(shown, !visible.mask || visible.mask->data<bool>()[row * kept + cell - visible.first]);
        }
      }
    }
  }

  static void check_distances(const StepPlan& plan, Cell first) {
    mx::array apart = distances(plan, first);
    apart.eval();
    const auto seen = plan.cell_positions();
    const int kept = plan.read_len - first;
    for (int row = 0; row < plan.n_tokens(); ++row) {
      for (int cell = first; cell < plan.read_len; ++cell) {
        CHECK_EQ(apart.data<float>()[row * kept + cell - first], static_cast<float>(seen[cell] - plan.positions[row]));
      }
    }
  }
};

void test_a_row_that_sees_all_needs_no_mask() {
  Steps steps;
  CHECK(steps(std::vector<SeqId>(20, 0)).mask.has_value());  // causal, among themselves
  CHECK(!steps({0}).mask.has_value());
}

void test_a_window_of_a_lone_sequence_is_a_slice() {
  Steps steps;
  steps(std::vector<SeqId>(50, 0));
  const VisibleCells one = steps({0}, 8);
  CHECK_EQ(one.first, 43);
  CHECK(!one.mask.has_value());
  const VisibleCells two = steps({0, 0}, 8);
  CHECK_EQ(two.first, 44);
  CHECK(two.mask.has_value());
  const VisibleCells sinks = steps({0}, 8, 2);
  CHECK_EQ(sinks.first, 0);
  CHECK(sinks.mask.has_value());
}

void test_a_chunk_of_a_lone_sequence_is_a_slice() {
  Steps steps;
  steps(std::vector<SeqId>(50, 0));
  const VisibleCells one = steps({0}, 0, 0, 16);
  CHECK_EQ(one.first, 48);
  CHECK(!one.mask.has_value());
  const VisibleCells first_of_its_chunk = steps(std::vector<SeqId>(14, 0), 0, 0, 16);
  CHECK_EQ(first_of_its_chunk.first, 48);
  CHECK(first_of_its_chunk.mask.has_value());
}

void test_cells_of_others_below_are_left_out() {
  Steps steps;
  steps(std::vector<SeqId>(100, 0));
  steps(std::vector<SeqId>(10, 1));
  const VisibleCells visible = steps({1});
  CHECK_EQ(visible.first, 100);
  CHECK(!visible.mask.has_value());
  CHECK_EQ(steps({0, 1}).first, 0);
}

}  // namespace

int main() {
  on_owner([] {
    test_a_row_that_sees_all_needs_no_mask();
    test_a_window_of_a_lone_sequence_is_a_slice();
    test_a_chunk_of_a_lone_sequence_is_a_slice();
    test_cells_of_others_below_are_left_out();
  });
}
