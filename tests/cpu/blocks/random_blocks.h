// Rows of blocks of any codes, for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "cpp/numbers.h"
#include "cpu/blocks/block_weight.h"

namespace agentkv::cpu::testing {

// Random blocks whose scales are numbers of an ordinary size.
inline std::vector<std::byte> random_rows(const BlockShape& shape, unsigned seed) {
  const BlockTypeInfo& info = block_type_info(static_cast<int>(shape.type));
  std::vector<std::byte> rows(static_cast<std::size_t>(shape.outputs) * block_row_bytes(shape));
  std::minstd_rand rng(seed);
  const auto byte = [&] { return agentkv::testing::between(rng, 0, 255); };
  for (std::byte& each : rows) each = static_cast<std::byte>(byte());
  const auto put_half = [&](std::byte* at) {
    const int half = agentkv::testing::between(rng, 0x2000, 0x3000), sign = agentkv::testing::between(rng, 0, 1);
    const auto bits = static_cast<std::uint16_t>(half | sign << 15);
    std::memcpy(at, &bits, sizeof(bits));
  };
  for (std::size_t b = 0; b < rows.size() / info.bytes; ++b) {
    std::byte* block = rows.data() + b * info.bytes;
    switch (shape.type) {
      case BlockType::MXFP4:
        block[0] = static_cast<std::byte>(118 + byte() % 8);
        break;
      case BlockType::Q2_K:
        put_half(block + 80), put_half(block + 82);
        break;
      case BlockType::Q3_K:
        put_half(block + 108);
        break;
      case BlockType::Q6_K:
        put_half(block + 208);
        break;
      case BlockType::Q4_1:
      case BlockType::Q5_1:
      case BlockType::Q4_K:
      case BlockType::Q5_K:
        put_half(block), put_half(block + 2);
        break;
      case BlockType::F32: {
        const float x = static_cast<float>(byte()) / 128 - 1;
        std::memcpy(block, &x, sizeof(x));
        break;
      }
      default:
        put_half(block);
    }
  }
  return rows;
}

}  // namespace agentkv::cpu::testing
