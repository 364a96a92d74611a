// The passes of softmax.h over blocks, compiled once per instruction set.
#pragma once

#include <cstddef>

namespace agentkv {

struct SoftmaxKernels {
  float (*block_max)(const float* x, std::size_t n);
  // The sum of exp((x - max) * inv_temperature) where x >= floor.
  double (*block_mass)(const float* x, std::size_t n, float max, float inv_temperature, float floor);
  void (*terms)(const float* x, std::size_t n, float max, float inv_temperature, float floor, float* terms);
  void (*group_maxima)(const float* x, std::size_t n, std::size_t group, float* maxima);
};

const SoftmaxKernels& softmax_kernels();  // for the instruction set in use

}  // namespace agentkv
