#include "fixture.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "convert.h"
#include "cpu/kernels/rotation.h"
#include "cpu/kernels/table.h"

namespace agentkv::cpu::testing {

std::vector<std::pair<Pos, Cell>> visible_cells(const StepPlan& plan, int row, const Sight& sight) {
  std::vector<std::pair<Pos, Cell>> cells;
  const Pos position = plan.positions[row];
  auto add = [&](Run run, Pos limit) {
    for (Cell i = 0; i < run.length; ++i) {
      const Pos p = run.position + i;
      if (p > limit || (sight.window > 0 && p <= position - sight.window && p >= sight.sinks)) continue;
      if (sight.chunk > 0 && p / sight.chunk < position / sight.chunk) continue;
      cells.emplace_back(p, run.cell + i);
    }
  };
  for (const Run& run : plan.view(plan.row_view[row])) add(run, plan.row_limit[row]);
  for (const Run& run : plan.tail(row)) add(run, position);
  return cells;
}

namespace {

float rounded(KvDtype dtype, float x) {
  if (dtype == KvDtype::Fp16) return float_from_fp16(fp16_from_float(x));
  if (dtype == KvDtype::Bf16) return float_from_bf16(bf16_from_float(x));
  return x;
}

int code_of(KvDtype dtype, const std::byte* row, int d) {
  if (dtype == KvDtype::Int8) return static_cast<std::int8_t>(row[d]);
  constexpr int levels[] = {6, 18, 31, 44, 58, 75, 96, 127};
  const int byte = static_cast<int>(row[d / 32 * 16 + d % 16]), nibble = d % 32 < 16 ? byte & 15 : byte >> 4;
  return nibble < 8 ? levels[nibble] : -levels[nibble - 8];
}

}  // namespace

Tensor kept(KvDtype dtype, const Tensor& rows) {
  Tensor out(rows);
  if (!has_scales(dtype)) {
    for (float& x : out.data) x = rounded(dtype, x);
    return out;
  }
  std::vector<std::byte> codes(kMaxHeadDim);
  for (int h = 0; h < rows.heads; ++h) {
    for (int t = 0; t < rows.tokens; ++t) {
      float scale;
      row_kernels(dtype).store_row(rows.row(h, t), codes.data(), &scale, rows.dim);
      for (int d = 0; d < rows.dim; ++d) out.row(h, t)[d] = scale * static_cast<float>(code_of(dtype, codes.data(), d));
      turn_back(out.row(h, t), rows.dim);
    }
  }
  return out;
}

Filled::Filled(const Shape& shape, Cell cells, ParallelFor parallel_for, unsigned seed)
    : shape(shape),
      k(0, 0, 0),
      v(0, 0, 0),
      planner(std::make_shared<FixedPlan>()),
      cache(
          [&] {
            CacheConfig config;
            config.n_layers = 1;
            config.n_kv_heads = shape.n_kv_heads;
            config.head_dim = shape.head_dim;
            config.shapes = {{shape.n_kv_heads, shape.head_dim, shape.width_of_v(),
                              shape.values_in_keys ? Kept::Latent : Kept::KeysAndValues}};
            config.capacity = cells;
            config.min_chunk = 16;
            config.kv_dtype = shape.dtype;
            return config;
          }(),
          planner, std::move(parallel_for)) {
  std::mt19937 random(seed);
  k = Tensor(shape.n_kv_heads, cells, shape.head_dim, random);
  v = Tensor(shape.n_kv_heads, cells, shape.width_of_v(), random);
  for (int h = 0; shape.values_in_keys && h < shape.n_kv_heads; ++h) {
    for (int t = 0; t < cells; ++t) std::copy_n(k.row(h, t), v.dim, v.row(h, t));
  }
  for (int h = 0; h < shape.n_kv_heads * shape.group; ++h) {
    if (shape.sink_scores) sink_scores_.push_back(2.0f - static_cast<float>(h));
    if (shape.slopes) slopes_.push_back(std::exp2(-1.0f - static_cast<float>(h)));
  }
  std::vector<Cell> all(static_cast<std::size_t>(cells));
  std::iota(all.begin(), all.end(), 0);
  planner->current = PlanMaker().sequence(all, cells).done();
  const std::vector<std::int64_t> positions(all.begin(), all.end());
  cache.update_and_fetch(0, positions, k.view(), v.view());
}

Tensor Filled::queries(const StepPlan& plan, unsigned seed) const {
  Tensor q(shape.n_kv_heads * shape.group, plan.n_tokens(), shape.head_dim);
  for (int row = 0; row < plan.n_tokens(); ++row) {
    // By position: the same token asks the same question, however its step is batched.
    std::mt19937 random(seed * 1000003u + static_cast<unsigned>(plan.positions[row]));
    for (int h = 0; h < q.heads; ++h) {
      for (int d = 0; d < q.dim; ++d) q.row(h, row)[d] = agentkv::testing::normal(random);
    }
  }
  return q;
}

Tensor Filled::attend(const StepPlan& plan, float scale, Pos window, Pos sinks, unsigned seed) {
  planner->current = plan;
  const int n = plan.n_tokens();
  Tensor new_k(shape.n_kv_heads, n, shape.head_dim), new_v(shape.n_kv_heads, n, shape.width_of_v());
  for (int h = 0; h < shape.n_kv_heads; ++h) {
    for (int t = 0; t < n; ++t) {
      std::copy_n(k.row(h, plan.write_cells[t]), shape.head_dim, new_k.row(h, t));
      std::copy_n(v.row(h, plan.write_cells[t]), shape.width_of_v(), new_v.row(h, t));
    }
  }
  const std::vector<std::int64_t> positions(plan.positions.begin(), plan.positions.end());
  const AttendSpec spec = cache.update_and_fetch(0, positions, new_k.view(), new_v.view());
  Tensor out(shape.n_kv_heads * shape.group, n, shape.width_of_v());
  std::fill(out.data.begin(), out.data.end(), std::numeric_limits<float>::quiet_NaN());
  cache.attend(spec, queries(plan, seed).view(), scoring(scale),
               {.window = window, .sinks = sinks, .chunk = shape.chunk}, out.mutable_view());
  return out;
}

Tensor Filled::reference(const StepPlan& plan, float scale, Pos window, Pos sinks, unsigned seed) const {
  const KvDtypes dtypes = parse_kv_dtype(shape.dtype);
  const Tensor q = has_scales(dtypes.keys) ? kept(KvDtype::Int8, queries(plan, seed)) : queries(plan, seed);
  const Tensor keys = kept(dtypes.keys, k), values = kept(dtypes.values, v);
  Tensor out(q.heads, q.tokens, values.dim);
  for (int row = 0; row < plan.n_tokens(); ++row) {
    const auto cells = visible_cells(plan, row, {window, sinks, shape.chunk});
    for (int h = 0; h < q.heads; ++h) {
      std::vector<double> scores;
      double peak = -std::numeric_limits<double>::infinity(), total = 0;
      for (auto [position, cell] : cells) {
        double score = 0;
        for (int d = 0; d < q.dim; ++d) score += double{q.row(h, row)[d]} * keys.row(h / shape.group, cell)[d];
        score *= scale;
        if (shape.cap > 0) score = shape.cap * std::tanh(score / shape.cap);
        if (shape.slopes) score += double{slopes_[h]} * (position - plan.positions[row]);
        scores.push_back(score);
        peak = std::max(peak, scores.back());
      }
      if (shape.sink_scores) {
        peak = std::max(peak, double{sink_scores_[h]});
        total = std::exp(double{sink_scores_[h]} - peak);
      }
      std::vector<double> sum(static_cast<std::size_t>(out.dim));
      for (std::size_t i = 0; i < cells.size(); ++i) {
        const double weight = std::exp(scores[i] - peak);
        total += weight;
        for (int d = 0; d < out.dim; ++d) sum[d] += weight * values.row(h / shape.group, cells[i].second)[d];
      }
      for (int d = 0; d < out.dim; ++d) out.row(h, row)[d] = static_cast<float>(sum[d] / total);
    }
  }
  return out;
}

void PlanMaker::add_view(const std::vector<Cell>& cells) {
  const std::size_t first = plan.runs.size();
  for (Pos p = 0; p < static_cast<Pos>(cells.size()); ++p) {
    if (cells[p] < 0) continue;
    if (plan.runs.size() > first) {
      Run& last = plan.runs.back();
      if (last.position + last.length == p && last.cell + last.length == cells[p]) {
        ++last.length;
        continue;
      }
    }
    plan.runs.push_back({p, cells[p], 1});
  }
  plan.view_offsets.push_back(static_cast<std::int32_t>(plan.runs.size()));
}

void PlanMaker::add_row(Pos position, Cell cell, Pos limit, const std::vector<Run>& tail) {
  plan.positions.push_back(position);
  plan.write_cells.push_back(cell);
  plan.row_view.push_back(plan.n_views() - 1);
  plan.row_limit.push_back(limit);
  if (plan.tail_offsets.empty()) plan.tail_offsets.push_back(0);
  plan.tails.insert(plan.tails.end(), tail.begin(), tail.end());
  plan.tail_offsets.push_back(static_cast<std::int32_t>(plan.tails.size()));
}

PlanMaker& PlanMaker::sequence(const std::vector<Cell>& cells, int n) {
  add_view(cells);
  const Pos length = static_cast<Pos>(cells.size());
  for (Pos p = length - n; p < length; ++p) add_row(p, cells[p], p, {});
  return *this;
}

PlanMaker& PlanMaker::tree(const std::vector<Cell>& cells, const std::vector<std::vector<Run>>& tails) {
  add_view(cells);
  const Pos limit = static_cast<Pos>(cells.size()) - 1;
  for (const auto& tail : tails) {
    const Run& last = tail.back();
    add_row(last.position + last.length - 1, last.cell + last.length - 1, limit, tail);
  }
  return *this;
}

StepPlan PlanMaker::done() {
  for (const Run& run : plan.runs) plan.read_len = std::max(plan.read_len, run.cell + run.length);
  for (const Run& run : plan.tails) plan.read_len = std::max(plan.read_len, run.cell + run.length);
  if (plan.tails.empty()) plan.tail_offsets.clear();
  return plan;
}

double largest_difference(const Tensor& a, const Tensor& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.data.size(); ++i) {
    const double difference = std::fabs(double{a.data[i]} - b.data[i]);
    if (!(difference <= worst)) worst = difference;  // NaN counts as the worst
  }
  return worst;
}

}  // namespace agentkv::cpu::testing
