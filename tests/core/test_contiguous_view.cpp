#include <memory>
#include <string>
#include <vector>

#include "core/cells.h"
#include "core/contiguous_view.h"
#include "core/errors.h"
#include "core/steps.h"
#include "cpp/check.h"

using namespace agentkv;
using agentkv::testing::drawn;

namespace {

struct Rig {
  std::shared_ptr<Cells> cells = std::make_shared<Cells>(8, 1);
  ContiguousView view{cells};
};

void feed(Rig& rig, std::int32_t n) {
  rig.view.begin_step(n);
  testing::plan(*rig.cells);
  rig.view.commit_step();
}

void test_plan_is_causal() {
  Rig rig;
  ContiguousView& cells = rig.view;
  feed(rig, 2);
  cells.begin_step(3);
  CHECK_EQ(cells.length(), 2);
  const StepPlan& plan = testing::plan(*rig.cells);
  CHECK(plan.kind == StepPlan::Kind::SingleContiguous);
  CHECK_EQ(plan.write_cells, (std::vector<Cell>{2, 3, 4}));
  CHECK_EQ(plan.read_len, 5);
  CHECK_EQ(drawn(plan), (std::vector<std::string>{"###..", "####.", "#####"}));
  CHECK_EQ(drawn(plan, 2), (std::vector<std::string>{".##..", "..##.", "...##"}));
  CHECK_EQ(drawn(plan, 2, 1), (std::vector<std::string>{"###..", "#.##.", "#..##"}));
  CHECK_THROWS(plan.mask(-1), InvalidRange, "-1");
  cells.commit_step();
  CHECK_EQ(cells.length(), 5);
}

void test_abort_and_rewind() {
  Rig rig;
  ContiguousView& cells = rig.view;
  feed(rig, 5);
  cells.begin_step(3);
  testing::plan(*rig.cells);
  CHECK_THROWS(cells.rewind(0), InvalidStep, "rewind inside an open step");
  CHECK_THROWS(cells.clear(), InvalidStep, "clear");
  CHECK_THROWS(cells.begin_step(1), InvalidStep, "begin_step");
  cells.abort_step();
  CHECK_EQ(cells.length(), 5);
  CHECK_THROWS(cells.rewind(6), InvalidRange, "length 6", "[0, 5]");
  CHECK_THROWS(cells.rewind(-1), InvalidRange, "-1");
  cells.rewind(3);
  CHECK(cells.can_extend(5));
  CHECK(!cells.can_extend(6));
  CHECK_THROWS(cells.begin_step(6), CacheFull, "6 rows", "5 of 8");
  CHECK_THROWS(cells.begin_step(0), InvalidStep, "0 rows");
  CHECK_THROWS(cells.begin_step(-5), InvalidStep, "-5 rows");
  CHECK_THROWS(cells.begin_step(2'000'000'000), CacheFull, "2000000000 rows");  // before anything is allocated for them
  CHECK_THROWS(cells.commit_step(), InvalidStep, "without an open step");
  cells.clear();
  CHECK_EQ(cells.used(), 0);
}

}  // namespace

int main() {
  test_plan_is_causal();
  test_abort_and_rewind();
}
