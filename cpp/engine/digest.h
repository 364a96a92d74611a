// A hash of a row of logits, for runs that are held to earlier ones.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace agentkv {

// The same on every machine. Each step maps its lane one to one (FNV-1a's, on whole words), so rows that differ in one
// number differ in their digest.
inline std::uint64_t digest_of(std::span<const float> row) {
  constexpr std::size_t kLanes = 8;
  constexpr std::uint64_t kPrime = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio
  const auto mixed = [](std::uint64_t hash, std::uint64_t word) { return (hash ^ word) * kPrime; };
  std::array<std::uint64_t, kLanes> lanes;
  for (std::size_t i = 0; i < kLanes; ++i) lanes[i] = mixed(row.size(), i);
  std::size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = mixed(lanes[lane], std::bit_cast<std::uint32_t>(row[i + lane]));
    }
  }
  std::uint64_t hash = row.size();
  for (; i < row.size(); ++i) hash = mixed(hash, std::bit_cast<std::uint32_t>(row[i]));
  for (const std::uint64_t lane : lanes) hash = mixed(hash ^ (hash >> 32), lane);
  return hash ^ (hash >> 32);
}

}  // namespace agentkv
