// Floats compared by their bits.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include "cpp/check.h"

namespace agentkv::cpu::testing {

// The same bits, or both NaN.
inline void check_same(std::span<const float> got, std::span<const float> want, const std::string& what) {
  CHECK_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], sizeof(float)) == 0 || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
    agentkv::testing::fail(__FILE__, __LINE__,
                           what + ": number " + std::to_string(i) + " is " + std::to_string(got[i]) + " and not " +
                               std::to_string(want[i]));
  }
}

}  // namespace agentkv::cpu::testing
