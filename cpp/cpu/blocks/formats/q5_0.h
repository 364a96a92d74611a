// Q5_0: a scale and 32 codes of 5 bits, their highest ones apart.
#pragma once

#include "cpu/blocks/format.h"

namespace agentkv::cpu {

inline void take_five_bits(const std::uint8_t* high, const std::uint8_t* low, std::uint8_t* codes) {
  take_nibbles(low, codes);
  for (int k = 0; k < 32; ++k) codes[k] |= static_cast<std::uint8_t>((high[k / 8] >> k % 8 & 1) << 4);
}

struct Q5_0 : FormatDefaults {
  static constexpr BlockType kType = BlockType::Q5_0;
  static constexpr const char* kName = "q5_0";
  static constexpr int kBytes = 22, kBits = 5, kOffset = 16;

  static void unpack(const std::uint8_t* bytes, Block& block) {
    block.scale = load_u16(bytes);
    take_five_bits(bytes + 2, bytes + 6, block.codes);
  }
};

}  // namespace agentkv::cpu
