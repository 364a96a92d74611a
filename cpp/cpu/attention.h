// Attention over a schedule: cuts the work into tasks and puts the pieces together in a fixed order.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "cpu/heads_view.h"
#include "cpu/pool.h"
#include "cpu/schedule.h"

namespace agentkv::cpu {

// Query rows (of all heads of one K/V head) that one task should have at most: enough that packing K and V pays.
inline constexpr int kTileQueries = 128;

// Buffers kept between calls, of segments that different tasks reduce: the states of each, and the queries of all.
struct AttentionScratch {
  std::vector<float> states, queries;
};

struct LayerView {
  PoolView k, v;
};

// How products of queries and keys become scores.
struct Scoring {
  float scale = 1;
  float cap = 0;                            // a score becomes cap * tanh(score / cap) (Gemma 2, 2024); 0: none
  std::span<const float> sink_scores = {};  // [n_heads] take weight and have no value (gpt-oss, 2025); empty: none
  std::span<const float> slopes = {};       // [n_heads] times (position seen - row's): ALiBi (Press et al. 2021)
};

// Shapes as in KvCache::attend, already checked. pools: of the cells, and of those that the schedule knows as
// quantised. Which tasks exist depends on the schedule alone, and the bits of a row not even on that.
void attend(const Schedule& schedule, const std::array<LayerView, 2>& pools, const HeadsView& q, int n_kv_heads,
            const Scoring& scoring, const MutableHeadsView& out, const ParallelFor& parallel_for,
            AttentionScratch& scratch);

}  // namespace agentkv::cpu
