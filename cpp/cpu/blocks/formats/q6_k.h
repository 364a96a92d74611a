// Q6_K: 16 groups of 16 codes of 6 bits, their two highest apart; each has a scale of 8 bits.
#pragma once

#include "cpu/blocks/format.h"

namespace agentkv::cpu {

struct Q6_K : FormatDefaults {
  static constexpr BlockType kType = BlockType::Q6_K;
  static constexpr const char* kName = "q6_k";
  static constexpr int kInputs = 256, kGroup = 16, kBytes = 210, kBits = 6, kOffset = 32;

  static void unpack(const std::uint8_t* bytes, Block& block) {
    const std::uint8_t *low = bytes, *high = bytes + 128;
    for (int c = 0; c < 8; ++c) {
      const int half = c / 4, quarter = c % 4;
      take_bits(low + half * 64 + quarter % 2 * 32, quarter / 2 * 4, 15, 0, block.codes + 32 * c);
      take_bits(high + half * 32, quarter * 2, 3, 4, block.codes + 32 * c);
    }
    std::memcpy(block.scales, bytes + 192, 16);
    block.scale = load_u16(bytes + 208);
  }

  static void pack(const Block& block, std::uint8_t* bytes) {
    std::memset(bytes, 0, kBytes);
    std::uint8_t *low = bytes, *high = bytes + 128;
    for (int c = 0; c < 8; ++c) {
      const int half = c / 4, quarter = c % 4;
      put_bits(block.codes + 32 * c, 0, 15, quarter / 2 * 4, low + half * 64 + quarter % 2 * 32);
      put_bits(block.codes + 32 * c, 4, 3, quarter * 2, high + half * 32);
    }
    std::memcpy(bytes + 192, block.scales, 16);
    store_u16(block.scale, bytes + 208);
  }
};

}  // namespace agentkv::cpu
