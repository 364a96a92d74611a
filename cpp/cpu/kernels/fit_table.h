// The interface between the driver that quantises weights and its kernels: plain data, see table.h.
//
// A block of kFitRows outputs at a time: each output has a lane of the vectors, in which everything that concerns it is
// computed. So the bits are the same on every instruction set, whatever its vectors' width, and whichever outputs stand
// beside one; there is no FMA.
#pragma once

#include <cstdint>

#include "cpu/blocks/formats.h"

// The formats that weights can be quantised to.
#define AGENTKV_EACH_FITTED_FORMAT(APPLY) \
  APPLY(Q4_0) APPLY(Q4_1) APPLY(Q5_0) APPLY(Q5_1) APPLY(Q8_0) APPLY(Q4_K) APPLY(Q5_K) APPLY(Q6_K)

namespace agentkv::cpu {

inline constexpr int kFitRows = 16;

// In and out of a kernel, each [..][kFitRows]; see Block of format.h for what they mean.
struct alignas(64) FitBlock {
  float numbers[kMostBlockInputs][kFitRows];  // in: the weights; finite
  std::uint8_t codes[kMostBlockInputs][kFitRows];
  std::int8_t scales[16][kFitRows];
  std::uint8_t minima[16][kFitRows];
  std::uint16_t scale[kFitRows], minimum[kFitRows];
  float lost[kFitRows], whole[kFitRows];  // the squares of errors, and of the numbers, summed
};

struct FitKernelTable {
  // `importance`: what the square of an error at each of the block's inputs counts.
  void (*fit[kBlockFormats])(FitBlock& block, const float* importance);  // null for formats that are not fitted
};

// For the instruction set in use.
const FitKernelTable& fit_kernels();

}  // namespace agentkv::cpu
