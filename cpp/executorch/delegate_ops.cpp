#include "executorch/delegate_ops.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "executorch/threads.h"

namespace agentkv::delegate {
namespace {

constexpr std::int32_t kLanes = 16;
constexpr std::int64_t kFloatsPerTask = 1 << 14;  // less is not worth waking another thread

// Calls row(token) for every token, over the pool when the call is large. Rows are independent, so how they are split
// does not matter to their bits.
template <typename Row>
void for_each_row(std::int32_t tokens, std::int64_t floats_per_row, const Row& row) {
  const std::int64_t rows_per_task =
      std::max<std::int64_t>(1, kFloatsPerTask / std::max<std::int64_t>(1, floats_per_row));
  if (rows_per_task >= tokens) {
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

const float* row_of(const cpu::HeadsView& view, std::int32_t head, std::int32_t token) {
  return view.data + head * view.head_stride + token * view.token_stride;
}
float* row_of(const cpu::MutableHeadsView& view, std::int32_t head, std::int32_t token) {
  return view.data + head * view.head_stride + token * view.token_stride;
}

float sum_of_squares(const float* x, std::int32_t n) {
  float lanes[kLanes] = {};
  std::int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int32_t j = 0; j < kLanes; ++j) lanes[j] += x[i + j] * x[i + j];
  }
  for (std::int32_t j = 0; i < n; ++i, ++j) lanes[j] += x[i] * x[i];
  for (std::int32_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::int32_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

}  // namespace

void copy_rows(cpu::HeadsView src, cpu::MutableHeadsView dst) {
  for_each_row(src.tokens, static_cast<std::int64_t>(src.heads) * src.dim, [&](std::int32_t t) {
    for (std::int32_t h = 0; h < src.heads; ++h) {
      std::memmove(row_of(dst, h, t), row_of(src, h, t), static_cast<std::size_t>(src.dim) * sizeof(float));
    }
  });
}

void rms_norm(cpu::HeadsView src, std::span<const float> weight, float eps, cpu::MutableHeadsView dst) {
  const std::int32_t dim = src.dim;
  for_each_row(src.tokens, static_cast<std::int64_t>(src.heads) * dim, [&](std::int32_t t) {
    for (std::int32_t h = 0; h < src.heads; ++h) {
      const float* x = row_of(src, h, t);
      float* y = row_of(dst, h, t);
      const float scale = 1.0f / std::sqrt(sum_of_squares(x, dim) / static_cast<float>(dim) + eps);
      for (std::int32_t i = 0; i < dim; ++i) y[i] = x[i] * scale * weight[static_cast<std::size_t>(i)];
    }
  });
}

void rope_table(std::span<const std::int64_t> position, std::span<const float> inv_freq, float scaling,
                cpu::MutableHeadsView dst) {
  const auto n = static_cast<std::int32_t>(inv_freq.size());
  // A sine and a cosine cost what tens of multiplications do.
  for_each_row(dst.tokens, std::int64_t{64} * n, [&](std::int32_t t) {
    const auto p = static_cast<float>(position[static_cast<std::size_t>(t)]);
    float* y = row_of(dst, 0, t);
    for (std::int32_t i = 0; i < n; ++i) {
      const float angle = p * inv_freq[static_cast<std::size_t>(i)];
      y[i] = std::cos(angle) * scaling;
      y[i + n] = std::sin(angle) * scaling;
    }
  });
}

void rope(cpu::HeadsView src, cpu::HeadsView table, bool interleaved, cpu::MutableHeadsView dst) {
  const std::int32_t pairs = table.dim / 2;
  const auto rest = static_cast<std::size_t>(src.dim - table.dim);
  for_each_row(src.tokens, static_cast<std::int64_t>(src.heads) * src.dim, [&](std::int32_t t) {
    const float* cos = row_of(table, 0, t);
    const float* sin = cos + pairs;
    for (std::int32_t h = 0; h < src.heads; ++h) {
      const float* x = row_of(src, h, t);
      float* y = row_of(dst, h, t);
      const std::int32_t step = interleaved ? 2 : 1, partner = interleaved ? 1 : pairs;
      for (std::int32_t i = 0; i < pairs; ++i) {
        const std::int32_t a = i * step, b = a + partner;
        const float xa = x[a], xb = x[b];
        y[a] = xa * cos[i] - xb * sin[i];
        y[b] = xb * cos[i] + xa * sin[i];
      }
      if (rest > 0 && y != x) std::memcpy(y + table.dim, x + table.dim, rest * sizeof(float));
    }
  });
}

}  // namespace agentkv::delegate
