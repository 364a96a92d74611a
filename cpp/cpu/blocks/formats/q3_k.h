// Q3_K: 16 groups of 16 codes of 3 bits, their highest ones apart; each has a scale of 6 bits.
#pragma once

#include "cpu/blocks/format.h"

namespace agentkv::cpu {

struct Q3_K : FormatDefaults {
  static constexpr BlockType kType = BlockType::Q3_K;
  static constexpr const char* kName = "q3_k";
  static constexpr int kInputs = 256, kGroup = 16, kBytes = 110, kBits = 3, kOffset = 4;

  static void unpack(const std::uint8_t* bytes, Block& block) {
    const std::uint8_t *high = bytes, *low = bytes + 32, *scales = bytes + 96;
    for (int g = 0; g < 16; ++g) {
      const int four = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
      const int two = scales[8 + g % 4] >> g / 4 * 2 & 3;
      block.scales[g] = static_cast<std::int8_t>((four | two << 4) - 32);
    }
    for (int c = 0; c < 8; ++c) {
      take_bits(low + c / 4 * 32, c % 4 * 2, 3, 0, block.codes + 32 * c);
      take_bits(high, c, 1, 2, block.codes + 32 * c);
    }
    block.scale = load_u16(bytes + 108);
  }
};

}  // namespace agentkv::cpu
