// Scalar conversions between float32 and what a pool stores: the reference for the vector kernels.
#pragma once

#include <bit>
#include <cstdint>

namespace agentkv::cpu::testing {

// Round to nearest even; finite and infinite values beyond +-65504 saturate, NaN stays NaN.
std::uint16_t fp16_from_float(float x);
float float_from_fp16(std::uint16_t h);
// Round to nearest even; NaN stays NaN.
std::uint16_t bf16_from_float(float x);
inline float float_from_bf16(std::uint16_t h) { return std::bit_cast<float>(static_cast<std::uint32_t>(h) << 16); }

}  // namespace agentkv::cpu::testing
