// Random quantised weights, packed, for tests and benchmarks of linear layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "cpp/numbers.h"
#include "cpu/linear/packed_linear.h"

namespace agentkv::cpu::testing {

// Bytes that start at a multiple of 64.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::size_t n) : lines_((n + 63) / 64), size_(n) {}
  std::span<std::byte> span() { return {reinterpret_cast<std::byte*>(lines_.data()), size_}; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines_;
  std::size_t size_;
};

struct Weights {
  LinearShape shape;
  std::vector<std::int8_t> codes;
  std::vector<float> scales;

  Weights(const LinearShape& shape, unsigned seed)
      : shape(shape),
        codes(static_cast<std::size_t>(shape.outputs) * static_cast<std::size_t>(shape.inputs)),
        scales(codes.size() / static_cast<std::size_t>(shape.group)) {
    std::minstd_rand rng(seed);
    const int most = 1 << (shape.bits - 1);
    for (std::int8_t& c : codes) c = static_cast<std::int8_t>(agentkv::testing::between(rng, -most, most - 1));
    for (float& s : scales) s = 0.001f + 0.1f * agentkv::testing::unit(rng);
  }

  AlignedBytes packed() const {
    AlignedBytes bytes(packed_linear_bytes(shape));
    pack_linear(shape, codes, scales, bytes.span());
    return bytes;
  }
};

// As XNNPACK and we keep the scales of groups.
inline float nearest_bfloat16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
  std::memcpy(&x, &bits, sizeof(bits));
  return x;
}

}  // namespace agentkv::cpu::testing
