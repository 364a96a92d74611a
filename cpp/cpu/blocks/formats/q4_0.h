// Q4_0: a scale and 32 codes of 4 bits.
#pragma once

#include "cpu/blocks/format.h"

namespace agentkv::cpu {

struct Q4_0 : FormatDefaults {
  static constexpr BlockType kType = BlockType::Q4_0;
  static constexpr const char* kName = "q4_0";
  static constexpr int kBytes = 18, kBits = 4, kOffset = 8;

  static void unpack(const std::uint8_t* bytes, Block& block) {
    block.scale = load_u16(bytes);
    take_nibbles(bytes + 2, block.codes);
  }

  static void pack(const Block& block, std::uint8_t* bytes) {
    store_u16(block.scale, bytes);
    put_nibbles(block.codes, bytes + 2);
  }
};

}  // namespace agentkv::cpu
