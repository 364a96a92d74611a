// Hand-made plans over random K and V, and the same attention in double precision, row by row.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "core/cache.h"
#include "cpp/numbers.h"
#include "cpu/kv_cache.h"

namespace agentkv::cpu::testing {

struct FixedPlan final : StepPlanner {
  StepPlan current;
  const StepPlan& plan(std::span<const std::int64_t>, int) override { return current; }
};

struct Tensor {
  int heads, tokens, dim;
  std::vector<float> data;  // [heads, tokens, dim]

  Tensor(int heads, int tokens, int dim)
      : heads(heads), tokens(tokens), dim(dim), data(static_cast<std::size_t>(heads) * tokens * dim) {}
  Tensor(int heads, int tokens, int dim, std::mt19937& random) : Tensor(heads, tokens, dim) {
    for (float& x : data) x = agentkv::testing::normal(random);
  }
  float* row(int head, int token) { return &data[(static_cast<std::size_t>(head) * tokens + token) * dim]; }
  const float* row(int head, int token) const { return const_cast<Tensor*>(this)->row(head, token); }
  HeadsView view() const { return {data.data(), heads, tokens, dim, std::int64_t{tokens} * dim, dim}; }
  MutableHeadsView mutable_view() { return {data.data(), heads, tokens, dim, std::int64_t{tokens} * dim, dim}; }
};

struct Shape {
  int n_kv_heads = 2, group = 2, head_dim = 64;
  const char* dtype = "fp32";
  int v_dim = 0;  // 0: as head_dim
  bool values_in_keys = false;
  float cap = 0;
  bool sink_scores = false, slopes = false;
  Pos chunk = 0;

  int width_of_v() const { return v_dim > 0 ? v_dim : head_dim; }
};

// What a plan's row sees, as (position, cell).
std::vector<std::pair<Pos, Cell>> visible_cells(const StepPlan& plan, int row, const Sight& sight);

// What a pool of that dtype gives back of rows: rounded, or through codes and back.
Tensor kept(KvDtype dtype, const Tensor& rows);

// A cache whose cells [0, cells) were filled by one step, so that any later plan may read any of them.
class Filled {
 public:
  Filled(const Shape& shape, Cell cells, ParallelFor parallel_for, unsigned seed = 1);

  // Attends with random queries (a function of seed and row) under `plan`, whose rows rewrite the cells they name with
  // what these cells already hold.
  Tensor attend(const StepPlan& plan, float scale, Pos window = 0, Pos sinks = 0, unsigned seed = 2);
  Tensor reference(const StepPlan& plan, float scale, Pos window = 0, Pos sinks = 0, unsigned seed = 2) const;

  Shape shape;
  Tensor k, v;  // what was stored into the cells
  std::shared_ptr<FixedPlan> planner;
  KvCache cache;

 private:
  std::vector<float> sink_scores_, slopes_;  // [heads]; empty where the shape has none

  Scoring scoring(float scale) const { return {scale, shape.cap, sink_scores_, slopes_}; }
  Tensor queries(const StepPlan& plan, unsigned seed) const;
};

// Builds Explicit plans: rows of one sequence over position-ordered runs.
struct PlanMaker {
  StepPlan plan;
  PlanMaker() { plan.view_offsets = {0}; }
  // The sequence holds `cells[p]` at position p (-1: a hole); its last n positions are this step's rows.
  PlanMaker& sequence(const std::vector<Cell>& cells, int n);
  // As above, but the rows are draft nodes: node i sits in tails[i].back().cell and sees tails[i]. No plain rows.
  PlanMaker& tree(const std::vector<Cell>& cells, const std::vector<std::vector<Run>>& tails);
  StepPlan done();

 private:
  void add_view(const std::vector<Cell>& cells);
  void add_row(Pos position, Cell cell, Pos limit, const std::vector<Run>& tail);
};

double largest_difference(const Tensor& a, const Tensor& b);

}  // namespace agentkv::cpu::testing
