// Q2_K: 16 groups of 16 codes of 2 bits; each has a scale and a minimum of 4 bits.
#pragma once

#include "cpu/blocks/format.h"

namespace agentkv::cpu {

struct Q2_K : FormatDefaults {
  static constexpr BlockType kType = BlockType::Q2_K;
  static constexpr const char* kName = "q2_k";
  static constexpr int kInputs = 256, kGroup = 16, kBytes = 84, kBits = 2;
  static constexpr bool kHasMinimum = true;

  static void unpack(const std::uint8_t* bytes, Block& block) {
    for (int g = 0; g < 16; ++g) {
      block.scales[g] = static_cast<std::int8_t>(bytes[g] & 15);
      block.minima[g] = bytes[g] >> 4;
    }
    for (int c = 0; c < 8; ++c) take_bits(bytes + 16 + c / 4 * 32, c % 4 * 2, 3, 0, block.codes + 32 * c);
    block.scale = load_u16(bytes + 80);
    block.minimum = load_u16(bytes + 82);
  }
};

}  // namespace agentkv::cpu
