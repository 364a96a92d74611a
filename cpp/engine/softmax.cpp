#include "engine/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/isa.h"
#include "engine/softmax_kernels.h"

namespace agentkv {

AGENTKV_DEFINE_KERNELS(SoftmaxKernels, softmax_kernels)

namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

}  // namespace

RowSummary summarise(std::span<const float> row) {
  const SoftmaxKernels& k = softmax_kernels();
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
    masses[b] = softmax_kernels().block_mass(block.data(), block.size(), max, inv_temperature, floor);
  }
}

void softmax_terms(std::span<const float> row, float max, float inv_temperature, float floor, std::span<float> terms) {
  softmax_kernels().terms(row.data(), row.size(), max, inv_temperature, floor, terms.data());
}

void group_maxima(std::span<const float> row, std::span<float> maxima) {
  softmax_kernels().group_maxima(row.data(), row.size(), kMaximaGroup, maxima.data());
}

}  // namespace agentkv
