// Vector passes over one row of logits. The order of every reduction depends on the row's length alone, never on the
// batch or on the machine's vector width, so a row gives the same bits wherever it is computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace agentkv {

inline constexpr std::size_t kSoftmaxBlock = 1024;  // elements whose masses are summed together
inline constexpr std::size_t kMaximaGroup = 64;     // elements that share one entry of group_maxima

inline constexpr std::size_t softmax_blocks(std::size_t n) { return (n + kSoftmaxBlock - 1) / kSoftmaxBlock; }
inline constexpr std::size_t maxima_groups(std::size_t n) { return (n + kMaximaGroup - 1) / kMaximaGroup; }

struct RowSummary {
  float max;
  std::int32_t argmax;  // lowest index on ties
  double log_sum_exp;   // not finite iff the row holds NaN, +inf, or nothing above -inf
};

RowSummary summarise(std::span<const float> row);

// masses[b] = sum over block b of exp((x - max) * inv_temperature) where x >= floor. masses: [softmax_blocks(n)].
void block_masses(std::span<const float> row, float max, float inv_temperature, float floor, std::span<double> masses);

// The terms of those sums, one by one. terms: [row.size()].
void softmax_terms(std::span<const float> row, float max, float inv_temperature, float floor, std::span<float> terms);

// maxima: [maxima_groups(n)]. NaN counts as -inf.
void group_maxima(std::span<const float> row, std::span<float> maxima);

}  // namespace agentkv
