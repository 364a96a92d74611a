#include "engine/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/softmax_kernels.h"

namespace agentkv {

#if defined(__x86_64__)
extern const SoftmaxKernels softmax_kernels_v2, softmax_kernels_v3, softmax_kernels_v4;
#else
extern const SoftmaxKernels softmax_kernels_base;
#endif

namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

const SoftmaxKernels& choose() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 ? softmax_kernels_v4 : v3 ? softmax_kernels_v3 : softmax_kernels_v2;
#else
  return softmax_kernels_base;
#endif
}

const SoftmaxKernels& kernels() {
  static const SoftmaxKernels& chosen = choose();
  return chosen;
}

}  // namespace

RowSummary summarise(std::span<const float> row) {
  const SoftmaxKernels& k = kernels();
  float max = kLowest;
  double mass = 0;
  std::size_t best = 0;
  for (std::size_t b = 0; b < row.size(); b += kSoftmaxBlock) {
    const std::size_t size = std::min(kSoftmaxBlock, row.size() - b);
    const float here = k.block_max(row.data() + b, size);
    if (here > max) {
      if (mass != 0) mass *= std::exp(static_cast<double>(max) - static_cast<double>(here));
      max = here;
      best = b;
    }
    mass += k.block_mass(row.data() + b, size, max == kLowest ? 0.0f : max, 1.0f, kLowest);
  }
  while (best + 1 < row.size() && !(row[best] == max)) ++best;
  return {max, static_cast<std::int32_t>(best), static_cast<double>(max) + std::log(mass)};
}

void block_masses(std::span<const float> row, float max, float inv_temperature, float floor, std::span<double> masses) {
  for (std::size_t b = 0; b < masses.size(); ++b) {
    const auto block = row.subspan(b * kSoftmaxBlock).first(std::min(kSoftmaxBlock, row.size() - b * kSoftmaxBlock));
    masses[b] = kernels().block_mass(block.data(), block.size(), max, inv_temperature, floor);
  }
}

void softmax_terms(std::span<const float> row, float max, float inv_temperature, float floor, std::span<float> terms) {
  kernels().terms(row.data(), row.size(), max, inv_temperature, floor, terms.data());
}

void group_maxima(std::span<const float> row, std::span<float> maxima) {
  kernels().group_maxima(row.data(), row.size(), kMaximaGroup, maxima.data());
}

}  // namespace agentkv
