// Random numbers that are the same with every standard library: what a distribution of the library makes of a
// generator is its own affair.
#pragma once

#include <cstdint>

namespace agentkv::testing {

// Of mean 0 and variance 1, close to normal: four uniform numbers, whose sum is exact.
template <class Rng>
float normal(Rng& rng) {
  std::int32_t sum = -(2 << 22);
  for (int i = 0; i < 4; ++i) sum += static_cast<std::int32_t>(rng() >> 8 & 0x3fffff);
  return static_cast<float>(sum) * (1.7320508f * 0x1p-22f);
}

// At least 0 and less than 1.
template <class Rng>
float unit(Rng& rng) {
  return static_cast<float>(rng() >> 8 & 0x3fffff) * 0x1p-22f;
}

// An integer from `low` to `high`, both of them among what may come.
template <class Rng>
int between(Rng& rng, int low, int high) {
  return low + static_cast<int>((rng() >> 8) % static_cast<std::uint32_t>(high - low + 1));
}

}  // namespace agentkv::testing
