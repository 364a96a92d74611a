#include "cpu/row_ops.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "cpu/kernels/table.h"

namespace agentkv::cpu {
namespace {

constexpr std::int64_t kFloatsPerTask = 1 << 14;  // less is not worth waking another thread

// Calls row(token) for every token, over several threads when the call is large. Rows are independent, so how they are
// split does not matter to their bits.
template <typename Row>
void for_each_row(std::int32_t tokens, std::int64_t floats_per_row, const ParallelFor& parallel_for, const Row& row) {
  const std::int64_t rows_per_task =
      std::max<std::int64_t>(1, kFloatsPerTask / std::max<std::int64_t>(1, floats_per_row));
  if (rows_per_task >= tokens || !parallel_for) {
    for (std::int32_t t = 0; t < tokens; ++t) row(t);
    return;
  }
  const auto n_tasks = static_cast<std::size_t>((tokens + rows_per_task - 1) / rows_per_task);
  parallel_for(n_tasks, [&](std::size_t task) {
    const auto begin = static_cast<std::int32_t>(static_cast<std::int64_t>(task) * rows_per_task);
    const auto end = static_cast<std::int32_t>(std::min<std::int64_t>(tokens, begin + rows_per_task));
    for (std::int32_t t = begin; t < end; ++t) row(t);
  });
}

auto* row_of(const auto& view, std::int32_t head, std::int32_t token) {
  return view.data + head * view.head_stride + token * view.token_stride;
}

// Calls head_row(x, y, token) for every head of every row.
template <typename HeadRow>
void for_each_head_row(const HeadsView& src, const MutableHeadsView& dst, const ParallelFor& parallel_for,
                       const HeadRow& head_row) {
  for_each_row(src.tokens, std::int64_t{src.heads} * src.dim, parallel_for, [&](std::int32_t t) {
    for (std::int32_t h = 0; h < src.heads; ++h) head_row(row_of(src, h, t), row_of(dst, h, t), t);
  });
}

}  // namespace

void copy_rows(const HeadsView& src, const MutableHeadsView& dst, const ParallelFor& parallel_for) {
  const auto bytes = static_cast<std::size_t>(src.dim) * sizeof(float);
  for_each_head_row(src, dst, parallel_for, [&](const float* x, float* y, std::int32_t) { std::memmove(y, x, bytes); });
}

void rms_norm(const HeadsView& src, std::span<const float> weight, float eps, const MutableHeadsView& dst,
              const ParallelFor& parallel_for) {
  const auto norm = kernels().rms_norm;
  for_each_head_row(src, dst, parallel_for,
                    [&](const float* x, float* y, std::int32_t) { norm(x, weight.data(), eps, y, src.dim); });
}

void rope_table(std::span<const std::int64_t> position, std::span<const float> inv_freq, float scaling,
                const MutableHeadsView& dst, const ParallelFor& parallel_for) {
  const auto n = static_cast<std::int32_t>(inv_freq.size());
  // A sine and a cosine cost what tens of multiplications do.
  for_each_row(dst.tokens, std::int64_t{64} * n, parallel_for, [&](std::int32_t t) {
    const auto p = static_cast<float>(position[static_cast<std::size_t>(t)]);
    float* y = row_of(dst, 0, t);
    for (std::int32_t i = 0; i < n; ++i) {
      const float angle = p * inv_freq[static_cast<std::size_t>(i)];
      y[i] = std::cos(angle) * scaling;
      y[i + n] = std::sin(angle) * scaling;
    }
  });
}

void rope(const HeadsView& src, const HeadsView& table, bool interleaved, const MutableHeadsView& dst,
          const ParallelFor& parallel_for) {
  const auto rotate = kernels().rotate;
  const std::int32_t pairs = table.dim / 2;
  const auto rest = static_cast<std::size_t>(src.dim - table.dim);
  for_each_head_row(src, dst, parallel_for, [&](const float* x, float* y, std::int32_t t) {
    const float* cos = row_of(table, 0, t);
    rotate(x, cos, cos + pairs, pairs, interleaved, y);
    if (rest > 0 && y != x) std::memcpy(y + table.dim, x + table.dim, rest * sizeof(float));
  });
}

void add_rows(const HeadsView& a, const HeadsView& b, const MutableHeadsView& dst, const ParallelFor& parallel_for) {
  const auto add = kernels().add;
  for_each_row(a.tokens, std::int64_t{a.heads} * a.dim, parallel_for, [&](std::int32_t t) {
    for (std::int32_t h = 0; h < a.heads; ++h) add(row_of(a, h, t), row_of(b, h, t), row_of(dst, h, t), a.dim);
  });
}

void multiply_rows(const HeadsView& a, const HeadsView& b, const MutableHeadsView& dst,
                   const ParallelFor& parallel_for) {
  const auto multiply = kernels().multiply;
  for_each_row(a.tokens, std::int64_t{a.heads} * a.dim, parallel_for, [&](std::int32_t t) {
    for (std::int32_t h = 0; h < a.heads; ++h) multiply(row_of(a, h, t), row_of(b, h, t), row_of(dst, h, t), a.dim);
  });
}

void weighted_sum(const HeadsView& src, const HeadsView& weights, const MutableHeadsView& dst,
                  const ParallelFor& parallel_for) {
  const auto sum = kernels().weighted_sum;
  for_each_row(src.tokens, std::int64_t{src.heads} * src.dim, parallel_for, [&](std::int32_t t) {
    sum(row_of(src, 0, t), src.head_stride, row_of(weights, 0, t), src.heads, row_of(dst, 0, t), src.dim);
  });
}

void gate_rows(Gate gate, const HeadsView& src, const HeadsView* up, const MutableHeadsView& dst,
               const ParallelFor& parallel_for) {
  const auto apply = kernels().gate[static_cast<std::size_t>(gate)];
  // An exponential costs what some ten multiplications do.
  for_each_row(src.tokens, std::int64_t{8} * src.heads * src.dim, parallel_for, [&](std::int32_t t) {
    for (std::int32_t h = 0; h < src.heads; ++h) {
      apply(row_of(src, h, t), up == nullptr ? nullptr : row_of(*up, h, t), row_of(dst, h, t), src.dim);
    }
  });
}

}  // namespace agentkv::cpu
