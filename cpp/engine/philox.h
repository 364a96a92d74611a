// Counter-based random numbers: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
// 1, 2, 3" (2011). The same (seed, stream, position) gives the same number, whatever was drawn before.
#pragma once

#include <array>
#include <cstdint>

namespace agentkv {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

inline PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;    // of the branch
  std::uint32_t position = 0;  // of the token that is drawn
};

namespace detail {
inline std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
inline std::uint32_t high(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }
}  // namespace detail

// Uniform in [0, 1), 53 random bits.
inline double uniform(const RandomKey& k) {
  using detail::high, detail::low;
  const PhiloxCounter r = philox({low(k.stream), high(k.stream), k.position, 0}, {low(k.seed), high(k.seed)});
  return static_cast<double>((std::uint64_t{r[0]} << 21) ^ (r[1] >> 11)) * 0x1p-53;
}

// The random stream of a branch's n-th fork.
inline std::uint64_t child_stream(std::uint64_t parent, std::uint32_t n) {
  using detail::high, detail::low;
  const PhiloxCounter r = philox({low(parent), high(parent), n, 1}, {0x61676E74u, 0x666F726Bu});
  return (std::uint64_t{r[0]} << 32) | r[1];
}

}  // namespace agentkv
