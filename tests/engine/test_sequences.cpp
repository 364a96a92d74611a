// Sequences have one owner each, and hold nothing once they have none.
#include <memory>
#include <vector>

#include "core/cells.h"
#include "core/steps.h"
#include "cpp/check.h"
#include "engine/sequences.h"

using namespace agentkv;
using namespace agentkv::testing;

namespace {

void one_with_nothing_but_draft_nodes_is_given_back_empty() {
  const auto cells = std::make_shared<Cells>(16, 2);
  Sequences sequences(cells);
  {
    const auto lease = sequences.take();
    cells->propose(std::vector<std::int32_t>{-1, 0}, 2, *lease);
    step(*cells, {*lease, *lease});
    CHECK_EQ(cells->frontier_size(*lease), 2);
    CHECK_EQ(cells->seq_len(*lease), 0);
    CHECK_EQ(sequences.leased(), std::size_t{1});
  }
  CHECK_EQ(cells->used(), 0);
  CHECK_EQ(sequences.leased(), std::size_t{0});
  sequences.check();
}

}  // namespace

int main() { one_with_nothing_but_draft_nodes_is_given_back_empty(); }
