// IQ4_NL: a scale and 32 codes of 4 bits that stand for values at unequal distances.
#pragma once

#include "cpu/blocks/format.h"

namespace agentkv::cpu {

inline constexpr std::int8_t kUnequalValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                   1,    13,   25,  38,  53,  69,  89,  113};

struct IQ4_NL : FormatDefaults {
  static constexpr BlockType kType = BlockType::IQ4_NL;
  static constexpr const char* kName = "iq4_nl";
  static constexpr int kBytes = 18, kBits = 4;
  static constexpr const std::int8_t* kValues = kUnequalValues;

  static void unpack(const std::uint8_t* bytes, Block& block) {
    block.scale = load_u16(bytes);
    take_nibbles(bytes + 2, block.codes);
  }
};

}  // namespace agentkv::cpu
