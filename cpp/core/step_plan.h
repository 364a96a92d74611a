// The plan of one step: which cells are written and which are visible. Made once, shared by all layers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/types.h"

namespace agentkv {

struct StepPlan {
  enum class Kind {
    // One sequence whose positions [0, n) lie in cells [0, n), extended at its end: plain causal attention over a
    // contiguous prefix. An optimisation only; `Explicit` describes the same step and must give the same bits.
    SingleContiguous,
    Explicit,
  };

  Kind kind = Kind::Explicit;
  std::vector<Pos> positions;     // [n_tokens] position of each row's token
  std::vector<Cell> write_cells;  // [n_tokens] where each row's K and V go
  Cell read_len = 0;              // every visible cell is < read_len

  // Visibility as position-ordered runs. Rows of one sequence share a view; the view includes this step's own cells.
  // Row i sees the cells of view row_view[i] with position <= row_limit[i], then the runs of its tail, which continue
  // in position order. Plain rows have row_limit == positions and no tail; a draft-tree node has row_limit == the
  // last committed position and its ancestors and itself as the tail.
  std::vector<std::int32_t> row_view;      // [n_tokens]
  std::vector<Pos> row_limit;              // [n_tokens]
  std::vector<std::int32_t> view_offsets;  // [n_views + 1] into runs
  std::vector<Run> runs;
  std::vector<std::int32_t> tail_offsets;  // [n_tokens + 1] into tails; empty when no row has a tail
  std::vector<Run> tails;

  std::int32_t n_tokens() const { return static_cast<std::int32_t>(positions.size()); }
  std::int32_t n_views() const { return view_offsets.empty() ? 0 : static_cast<std::int32_t>(view_offsets.size()) - 1; }
  std::span<const Run> view(std::int32_t v) const {
    return {runs.data() + view_offsets[v], runs.data() + view_offsets[v + 1]};
  }
  std::span<const Run> tail(std::int32_t row) const {
    if (tail_offsets.empty()) return {};
    return {tails.data() + tail_offsets[row], tails.data() + tail_offsets[row + 1]};
  }

  // The same visibility as a dense mask [n_tokens, read_len], 1 where visible. Built when asked for.
  // window > 0 also hides positions <= positions[row] - window, except the first `sinks` positions; chunk > 0 those
  // before the row's chunk of so many positions.
  std::vector<std::uint8_t> mask(Pos window = 0, Pos sinks = 0, Pos chunk = 0) const;

  // [n_tokens, count]: the cells of each row's own position and of the count - 1 before it, the newest first; -1 where
  // the row sees none. Built when asked for. Throws InvalidRange for a count below 1.
  std::vector<Cell> recent_cells(Pos count) const;

  // The position of what each cell below read_len holds, 0 where nobody looks. Built when asked for.
  std::vector<Pos> cell_positions() const;

  bool operator==(const StepPlan&) const = default;
};

}  // namespace agentkv
