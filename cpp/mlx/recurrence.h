// How rows of a step go on from the states of a layer. A state is kept at the end of each block of positions, and at
// the last cell of what a sequence was fed, until more is. A row that goes on from elsewhere, such as behind a rollback
// or beside another fork, begins with the nearest state; what cells keep of the positions since then is run again.
#pragma once

#include <mlx/array.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "core/state_blocks.h"
#include "mlx/states.h"

namespace agentkv::mlx {

// Rows that follow one another in the branch as they do in the step.
struct StateRun {
  std::int32_t first = 0, end = 0;
  Cell from = -1;           // whose state they begin with, which an earlier row of the step may make; none: zeros
  std::vector<Cell> again;  // the cells between that one and the first row, in their order
};

// The runs of a step; the cells that it writes have no states. Throws InvalidStep where a row does not see all
// positions before it as far as it must.
std::vector<StateRun> runs_of(const BlockRows& rows, const States& states);

// What cells keep: [1, heads, n, width].
struct KeptRows {
  mx::array keys, values;
};

// The state behind one more position, lazily.
using NextState = std::function<mx::array(const mx::array& before, int index)>;

struct Recurrence {
  mx::array start;
  NextState again;  // over cells of earlier steps: index counts those of all runs
  NextState step;   // over a row of this one
};

// Takes the runs through their rows, each once and in their order, and keeps the states that later steps need.
void run_states(const BlockRows& rows, const std::vector<StateRun>& runs, const Recurrence& recurrence, States& states);

}  // namespace agentkv::mlx
