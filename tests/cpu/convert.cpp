#include "convert.h"

#include <algorithm>
#include <cmath>

namespace agentkv::cpu::testing {

std::uint16_t fp16_from_float(float x) {
  const std::uint32_t sign = (std::bit_cast<std::uint32_t>(x) >> 16) & 0x8000u;
  if (std::isnan(x)) return static_cast<std::uint16_t>(sign | 0x7e00u);
  const float a = std::min(std::fabs(x), 65504.0f);
  std::uint32_t u = std::bit_cast<std::uint32_t>(a);
  if (a < 0x1p-14f) {
    // Subnormal: adding 0.5 makes the float unit round at 2^-24, the step of fp16 subnormals.
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(a + 0.5f) - 0x3f000000u));
  }
  u += 0xfffu + ((u >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | std::min((u - 0x38000000u) >> 13, 0x7bffu));
}

float float_from_fp16(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  // Shifting the exponent in place is off by a factor 2^112, subnormals included; the multiplication is exact.
  const float a = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(a));
}

std::uint16_t bf16_from_float(float x) {
  std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return static_cast<std::uint16_t>((u >> 16) | 0x40u);
  u += 0x7fffu + ((u >> 16) & 1u);
  return static_cast<std::uint16_t>(u >> 16);
}

}  // namespace agentkv::cpu::testing
