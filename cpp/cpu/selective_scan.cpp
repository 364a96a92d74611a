#include "cpu/selective_scan.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "cpu/kernels/table.h"

namespace agentkv::cpu {
namespace {

constexpr int kChannels = 128;  // that a task takes through all rows

std::size_t of(std::int64_t n) { return static_cast<std::size_t>(n); }
float* row_of(Pool& pool, Cell cell) { return reinterpret_cast<float*>(pool.row(0, cell)); }
const float* row_of(const HeadsView& view, std::int32_t row) { return view.data + row * view.token_stride; }

// Rows that follow one another in the branch as they do in the step, and the cell whose state they begin with.
struct Run {
  std::int32_t first = 0, end = 0;
  Pos behind = 0;  // positions from that cell to the first row, which are run again
  Cell from = -1;  // none: zeros
};

std::vector<Run> runs_of(const BlockRows& rows, const States& states) {
  std::vector<Run> runs;
  for (std::int32_t row = 0; row < rows.count(); ++row) {
    const Cell parent = rows.seen(row)[1];
    if (row > 0 && parent >= 0 && parent == rows.cell(row - 1)) {
      runs.back().end = row + 1;
      continue;
    }
    Run& run = runs.emplace_back(Run{row, row + 1});
    const Pos furthest = std::min(rows.position(row), rows.inside(row) + 1);
    while (run.behind < furthest && run.from < 0) {
      const Cell cell = rows.seen(row)[++run.behind];
      if (states.find(cell) != nullptr) run.from = cell;
    }
    if (run.from < 0) run.behind = rows.position(row) + 1;  // its block is the first
  }
  return runs;
}

// Some channels through the rows of a step.
class Channels {
 public:
  Channels(const BlockRows& rows, const LayerShape& shape, Pool& keys, Pool& values, States& states,
           const ScanArgs& args, int first)
      : rows_(rows),
        keys_(keys),
        values_(values),
        states_(states),
        args_(args),
        first_(first),
        all_(shape.v_dim),
        n_states_(shape.k_dim),
        n_(std::min(kChannels, all_ - first)) {
    state_.resize(of(n_states_) * of(n_));
  }

  void run(const Run& run) {
    const float* from = run.from < 0 ? nullptr : states_.find(run.from);
    for (int s = 0; s < n_states_; ++s) {
      float* state = state_.data() + s * n_;
      if (from == nullptr) std::fill_n(state, n_, 0.0f);
      if (from != nullptr) std::copy_n(from + s * all_ + first_, n_, state);
    }
    for (Pos j = run.behind - 1; j > 0; --j) step(rows_.seen(run.first)[j], nullptr, nullptr);
    for (std::int32_t row = run.first; row < run.end; ++row) {
      step(rows_.cell(row), row_of(args_.c, row), args_.out.data + row * args_.out.token_stride + first_);
      if (float* kept = states_.find(rows_.cell(row))) {
        for (int s = 0; s < n_states_; ++s) std::copy_n(state_.data() + s * n_, n_, kept + s * all_ + first_);
      }
    }
  }

 private:
  void step(Cell cell, const float* c, float* out) {
    const float* x = row_of(values_, cell) + first_;
    kernels().scan(
        {x, x + all_, row_of(keys_, cell), c, args_.rates.data() + first_, all_, state_.data(), n_, out, n_states_},
        n_);
  }

  const BlockRows& rows_;
  Pool& keys_;
  Pool& values_;
  States& states_;
  const ScanArgs& args_;
  const int first_, all_, n_states_, n_;
  std::vector<float> state_;  // [n_states, n]
};

}  // namespace

void selective_scan(const BlockRows& rows, const LayerShape& shape, Pool& keys, Pool& values, States& states,
                    const ScanArgs& args, const ParallelFor& parallel_for) {
  rows.check([&](Cell cell) { return states.find(cell) != nullptr; });
  states.add_ends(rows);
  const std::vector<Run> runs = runs_of(rows, states);
  for (const Run& run : runs) {
    const std::int32_t last = run.end - 1;
    if (!rows.is_draft(last) && !ends_block(rows.position(last))) states.add(rows.cell(last), true);
  }
  for (std::int32_t row = 0; row < rows.count(); ++row) {
    std::copy_n(row_of(args.b, row), shape.k_dim, row_of(keys, rows.cell(row)));
    float* value = row_of(values, rows.cell(row));
    std::copy_n(row_of(args.x, row), shape.v_dim, value);
    std::copy_n(row_of(args.decay, row), shape.v_dim, value + shape.v_dim);
  }
  const auto task = [&](std::size_t index) {
    Channels channels(rows, shape, keys, values, states, args, static_cast<int>(index) * kChannels);
    for (const Run& run : runs) channels.run(run);
  };
  parallel_for(of((shape.v_dim + kChannels - 1) / kChannels), task);
  for (const Run& run : runs) {  // what only the last row of a sequence had
    const Pos at = rows.position(run.first) - run.behind;
    if (run.from >= 0 && !ends_block(at)) states.drop(run.from);
  }
}

}  // namespace agentkv::cpu
