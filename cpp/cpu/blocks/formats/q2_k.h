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
    for (int k = 0; k < 256; ++k) {
      block.codes[k] = bytes[16 + k / 128 * 32 + k % 32] >> k % 128 / 32 * 2 & 3;
    }
    block.scale = load_u16(bytes + 80);
    block.minimum = load_u16(bytes + 82);
  }
};

}  // namespace agentkv::cpu
