// Work cut into tasks for a ParallelFor.
#pragma once

#include <algorithm>
#include <cstddef>

#include "cpu/heads_view.h"

namespace agentkv::cpu {

// task(0) ... task(n - 1); a single one, and without a ParallelFor all, on the caller.
template <class Task>
void run_tasks(std::size_t n, const ParallelFor& parallel_for, const Task& task) {
  if (n > 1 && parallel_for) return parallel_for(n, task);
  for (std::size_t i = 0; i < n; ++i) task(i);
}

// each(0) ... each(rows - 1), where a row has `inputs` numbers to convert: so many rows to a task that it is worth
// waking another thread.
template <class Each>
void run_rows(int rows, int inputs, const ParallelFor& parallel_for, const Each& each) {
  constexpr int kInputsPerTask = 1 << 15;
  const int per_task = std::max(1, kInputsPerTask / inputs);
  run_tasks(static_cast<std::size_t>((rows + per_task - 1) / per_task), parallel_for, [&](std::size_t i) {
    const int begin = static_cast<int>(i) * per_task, end = std::min(rows, begin + per_task);
    for (int r = begin; r < end; ++r) each(r);
  });
}

}  // namespace agentkv::cpu
