#include "cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <numbers>

#include "cpu/kernels/table.h"

namespace agentkv::cpu {

namespace {

// Fewer (head, tile) pairs than this, and segments become tasks of their own, so that many threads have work.
constexpr std::size_t kEnoughTasks = 64;
constexpr std::size_t kMaxSplitFloats = std::size_t{8} << 20;
constexpr float kLog2e = std::numbers::log2e_v<float>;
constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr std::size_t kFewQueries = 64;  // not worth waking threads for

float* aligned(std::vector<float>& buffer, std::size_t floats) {
  if (buffer.size() < floats + 16) buffer.resize(floats + 16);
  const auto address = reinterpret_cast<std::uintptr_t>(buffer.data());
  return buffer.data() + (64 - address % 64) % 64 / sizeof(float);
}

// One thread's buffers.
struct Workspace {
  std::vector<float> floats;
  std::vector<const float*> q;
  std::vector<float*> state;
  std::vector<std::uint64_t> visible;
  std::vector<float> slopes, distances;
};

Workspace& workspace() {
  thread_local Workspace w;
  return w;
}

struct Attention {
  const Schedule& schedule;
  const KernelTable& kernel;
  std::array<LayerView, 2> pools;  // by Segment::quantized
  std::array<const RowKernels*, 2> key_rows, value_rows;
  HeadsView q;
  MutableHeadsView out;
  int n_kv_heads, group, k_dim, v_dim;
  Scoring scoring;  // scale and cap with log2(e)
  std::size_t state_size;
  std::size_t part_size, query_size;  // of a query as one pool's kernels read it, and as all do

  Attention(const Schedule& schedule, const std::array<LayerView, 2>& pools, const HeadsView& q, int n_kv_heads,
            const Scoring& scoring, const MutableHeadsView& out)
      : schedule(schedule),
        kernel(kernels()),
        pools(pools),
        key_rows{&row_kernels(pools[0].k.dtype), &row_kernels(pools[1].k.dtype)},
        value_rows{&row_kernels(pools[0].v.dtype), &row_kernels(pools[1].v.dtype)},
        q(q),
        out(out),
        n_kv_heads(n_kv_heads),
        group(q.heads / n_kv_heads),
        k_dim(q.dim),
        v_dim(out.dim),
        scoring(scoring),
        state_size(static_cast<std::size_t>(state_floats(out.dim))),
        part_size(static_cast<std::size_t>(query_floats(q.dim))),
        query_size(part_size * (schedule.sees_quantized() ? 2 : 1)) {
    this->scoring.scale *= kLog2e;
    this->scoring.cap *= kLog2e;
  }

  // Query rows of a tile are numbered slot * group + head within the K/V head.
  std::size_t queries(const Schedule::Tile& tile) const {
    return static_cast<std::size_t>(tile.end - tile.begin) * static_cast<std::size_t>(group);
  }

  void prepare_queries(const Schedule::Tile& tile, int head, float* prepared) const {
    for (std::int32_t slot = 0; slot < tile.end - tile.begin; ++slot) {
      for (int g = 0; g < group; ++g, prepared += query_size) {
        const float* row = q.data + (head * group + g) * q.head_stride + schedule.row(tile, slot) * q.token_stride;
        key_rows[0]->prepare_query(row, scoring.scale, prepared, k_dim);
        if (schedule.sees_quantized()) key_rows[1]->prepare_query(row, scoring.scale, prepared + part_size, k_dim);
      }
    }
  }

  // Reduces one segment into `states` [queries][state_size]. Rows that see nothing of it keep the empty state.
  void reduce(const Schedule::Tile& tile, int head, const Schedule::Segment& segment, const float* prepared,
              float* scratch, Workspace& w, float* states) const {
    const std::size_t n = queries(tile);
    for (std::size_t i = 0; i < n; ++i) kernel.init_state(states + i * state_size, v_dim);
    w.q.resize(n);
    w.state.resize(n);
    w.visible.resize(n);
    w.slopes.resize(n);
    w.distances.resize(n);
    BlockArgs args{};
    const auto& [k, v] = pools[segment.quantized];
    const AttendBlock attend_block = attend_kernel(k.dtype, v.dtype);
    if (segment.quantized) prepared += part_size;
    args.k = k.data + static_cast<std::size_t>(head) * k.head_stride;
    args.v = v.data + static_cast<std::size_t>(head) * v.head_stride;
    if (k.scales != nullptr) {
      args.k_scales = k.scales + static_cast<std::size_t>(head) * k.scale_stride;
      args.v_scales = v.scales + static_cast<std::size_t>(head) * v.scale_stride;
    }
    args.k_row_bytes = k.row_bytes;
    args.v_row_bytes = v.row_bytes;
    args.k_dim = k_dim;
    args.v_dim = v_dim;
    args.cap = scoring.cap;
    if (!scoring.slopes.empty()) {
      args.slopes = w.slopes.data();
      args.distances = w.distances.data();
    }
    args.q = w.q.data();
    args.state = w.state.data();
    args.visible = w.visible.data();
    args.scratch = scratch;
    const auto groups = schedule.groups();
    for (std::int32_t i = segment.group_begin; i < segment.group_end; ++i) {
      const Schedule::Group& current = groups[static_cast<std::size_t>(i)];
      int n_rows = 0;
      for (const Schedule::Member& member : schedule.members(current)) {
        for (int g = 0; g < group; ++g, ++n_rows) {
          const std::size_t query = static_cast<std::size_t>(member.slot * group + g);
          w.q[n_rows] = prepared + query * query_size;
          w.state[n_rows] = states + query * state_size;
          w.visible[n_rows] = member.visible;
          if (args.slopes == nullptr) continue;
          w.slopes[n_rows] = scoring.slopes[static_cast<std::size_t>(head * group + g)] * kLog2e;
          w.distances[n_rows] = static_cast<float>(current.block * kBlock - schedule.position(tile, member.slot));
        }
      }
      args.n_rows = n_rows;
      args.cells = schedule.cells(current.cells);
      args.next_cells =
          i + 1 < tile.group_end ? schedule.cells(groups[static_cast<std::size_t>(i) + 1].cells) : nullptr;
      attend_block(args);
    }
  }

  // The states of segments, those of the first in `total`, become one, in order. state_of(s) may compute it.
  template <class StateOf>
  void combine(std::size_t n, std::span<const Schedule::Segment> segments, float* total,
               const StateOf& state_of) const {
    for (std::size_t s = 0; s < segments.size(); ++s) {
      const float* state = state_of(s);
      if (s > 0) merge(n, total, state);
      const bool last = s + 1 == segments.size();
      if (last || segments[s].quantized != segments[s + 1].quantized) turn(n, total, segments[s].quantized);
    }
  }

  void turn(std::size_t n, float* states, bool quantized) const {
    for (std::size_t i = 0; i < n; ++i) value_rows[quantized]->turn_state(states + i * state_size, v_dim);
  }

  void finish(const Schedule::Tile& tile, int head, const float* states) const {
    for (std::int32_t slot = 0; slot < tile.end - tile.begin; ++slot) {
      for (int g = 0; g < group; ++g, states += state_size) {
        float* row = out.data + (head * group + g) * out.head_stride + schedule.row(tile, slot) * out.token_stride;
        kernel.finish(states, sink_score(head * group + g), row, v_dim);
      }
    }
  }

  void merge(std::size_t n, float* into, const float* later) const {
    for (std::size_t i = 0; i < n; ++i) kernel.merge_state(into + i * state_size, later + i * state_size, v_dim);
  }

  float sink_score(int head) const {
    const auto& sinks = scoring.sink_scores;
    return sinks.empty() ? kNone : sinks[static_cast<std::size_t>(head)] * kLog2e;
  }

  // A whole (tile, head) on this thread.
  void run(const Schedule::Tile& tile, int head) const {
    Workspace& w = workspace();
    const std::size_t n = queries(tile), states = n * state_size;
    float* total = aligned(w.floats, 2 * states + n * query_size + 16 + scratch_floats(k_dim, v_dim));
    float* part = total + states;
    float* scratch = part + states;
    float* prepared = scratch + scratch_floats(k_dim, v_dim);
    prepare_queries(tile, head, prepared);
    const auto segments = schedule.segments().subspan(static_cast<std::size_t>(tile.segment_begin),
                                                      static_cast<std::size_t>(tile.segment_end - tile.segment_begin));
    combine(n, segments, total, [&](std::size_t s) {
      float* into = s == 0 ? total : part;
      reduce(tile, head, segments[s], prepared, scratch, w, into);
      return into;
    });
    if (segments.empty()) {
      for (std::size_t i = 0; i < n; ++i) kernel.init_state(total + i * state_size, v_dim);
    }
    finish(tile, head, total);
  }

  // One segment of a (tile, head), whose queries are prepared, into its own states.
  void run_segment(const Schedule::Tile& tile, int head, const Schedule::Segment& segment, const float* prepared,
                   float* states) const {
    Workspace& w = workspace();
    reduce(tile, head, segment, prepared, aligned(w.floats, static_cast<std::size_t>(scratch_floats(k_dim, v_dim))), w,
           states);
  }
};

}  // namespace

void attend(const Schedule& schedule, const std::array<LayerView, 2>& pools, const HeadsView& q, int n_kv_heads,
            const Scoring& scoring, const MutableHeadsView& out, const ParallelFor& parallel_for,
            AttentionScratch& scratch) {
  const Attention attention(schedule, pools, q, n_kv_heads, scoring, out);
  const auto tiles = schedule.tiles();
  const auto heads = static_cast<std::size_t>(n_kv_heads);
  const std::size_t pairs = tiles.size() * heads;
  const std::size_t segments = schedule.segments().size();
  std::size_t states = 0, queries = 0;
  bool all_see = true;
  for (const Schedule::Tile& tile : tiles) {
    queries += attention.queries(tile);
    states += attention.queries(tile) * static_cast<std::size_t>(tile.segment_end - tile.segment_begin);
    all_see = all_see && tile.segment_end > tile.segment_begin;
  }
  const std::size_t split_floats = states * heads * attention.state_size;
  if (!all_see || pairs >= kEnoughTasks || schedule.max_segments() < 2 || split_floats > kMaxSplitFloats) {
    // Later tiles of a chunk see more: start with them.
    parallel_for(pairs, [&](std::size_t task) {
      attention.run(tiles[tiles.size() - 1 - task / heads], static_cast<int>(task % heads));
    });
    return;
  }

  // One task per (segment, head); whoever ends a (tile, head)'s last segment puts its segments together, in order.
  float* buffer = aligned(scratch.states, split_floats);
  std::vector<std::size_t> tile_of(segments);
  std::vector<float*> states_of(segments);
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    for (std::int32_t s = tiles[t].segment_begin; s < tiles[t].segment_end; ++s) {
      tile_of[s] = t;
      states_of[s] = buffer;
      buffer += heads * attention.queries(tiles[t]) * attention.state_size;
    }
  }
  std::vector<std::atomic<std::int32_t>> left(pairs);
  for (std::size_t i = 0; i < pairs; ++i) {
    const Schedule::Tile& tile = tiles[i / heads];
    left[i].store(tile.segment_end - tile.segment_begin, std::memory_order_relaxed);
  }
  float* prepared = aligned(scratch.queries, queries * heads * attention.query_size);
  const auto queries_of = [&](const Schedule::Tile& tile, std::size_t head) {
    const auto before = static_cast<std::size_t>(tile.begin) * static_cast<std::size_t>(attention.group);
    return prepared + (head * queries + before) * attention.query_size;
  };
  const auto prepare = [&](std::size_t i) {
    attention.prepare_queries(tiles[i / heads], static_cast<int>(i % heads), queries_of(tiles[i / heads], i % heads));
  };
  if (queries * heads > kFewQueries) {
    parallel_for(pairs, prepare);
  } else {
    for (std::size_t i = 0; i < pairs; ++i) prepare(i);
  }
  // Head by head, since the end of a segment prefetches the start of the next.
  parallel_for(segments * heads, [&](std::size_t task) {
    const std::size_t segment = task % segments, head = task / segments;
    const Schedule::Tile& tile = tiles[tile_of[segment]];
    const std::size_t n = attention.queries(tile), offset = head * n * attention.state_size;
    attention.run_segment(tile, static_cast<int>(head), schedule.segments()[segment], queries_of(tile, head),
                          states_of[segment] + offset);
    if (left[tile_of[segment] * heads + head].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    float* total = states_of[tile.segment_begin] + offset;
    const auto first = static_cast<std::size_t>(tile.segment_begin);
    attention.combine(n, schedule.segments().subspan(first, static_cast<std::size_t>(tile.segment_end) - first), total,
                      [&](std::size_t s) { return states_of[first + s] + offset; });
    attention.finish(tile, static_cast<int>(head), total);
  });
}

}  // namespace agentkv::cpu
