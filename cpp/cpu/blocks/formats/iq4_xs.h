// IQ4_XS: 8 groups of 32 codes of 4 bits that stand for values at unequal distances; each has a scale of 6 bits.
#pragma once

#include "cpu/blocks/formats/iq4_nl.h"

namespace agentkv::cpu {

struct IQ4_XS : FormatDefaults {
  static constexpr BlockType kType = BlockType::IQ4_XS;
  static constexpr const char* kName = "iq4_xs";
  static constexpr int kInputs = 256, kBytes = 136, kBits = 4;
  static constexpr const std::int8_t* kValues = kUnequalValues;

  static void unpack(const std::uint8_t* bytes, Block& block) {
    block.scale = load_u16(bytes);
    const int high = load_u16(bytes + 2);
    for (int g = 0; g < 8; ++g) {
      const int four = bytes[4 + g / 2] >> g % 2 * 4 & 15;
      block.scales[g] = static_cast<std::int8_t>((four | (high >> g * 2 & 3) << 4) - 32);
      take_nibbles(bytes + 8 + g * 16, block.codes + g * 32);
    }
  }
};

}  // namespace agentkv::cpu
