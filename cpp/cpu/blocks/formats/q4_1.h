// Q4_1: a scale, a minimum and 32 codes of 4 bits.
#pragma once

#include "cpu/blocks/format.h"

namespace agentkv::cpu {

struct Q4_1 : FormatDefaults {
  static constexpr BlockType kType = BlockType::Q4_1;
  static constexpr const char* kName = "q4_1";
  static constexpr int kBytes = 20, kBits = 4;
  static constexpr bool kHasMinimum = true;

  static void unpack(const std::uint8_t* bytes, Block& block) {
    block.scale = load_u16(bytes);
    block.minimum = load_u16(bytes + 2) ^ 0x8000;  // files add it
    take_nibbles(bytes + 4, block.codes);
  }

  static void pack(const Block& block, std::uint8_t* bytes) {
    store_u16(block.scale, bytes);
    store_u16(block.minimum ^ 0x8000, bytes + 2);
    put_nibbles(block.codes, bytes + 4);
  }
};

}  // namespace agentkv::cpu
