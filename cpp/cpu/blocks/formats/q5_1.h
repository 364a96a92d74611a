// Q5_1: a scale, a minimum and 32 codes of 5 bits, their highest ones apart.
#pragma once

#include "cpu/blocks/formats/q5_0.h"

namespace agentkv::cpu {

struct Q5_1 : FormatDefaults {
  static constexpr BlockType kType = BlockType::Q5_1;
  static constexpr const char* kName = "q5_1";
  static constexpr int kBytes = 24, kBits = 5;
  static constexpr bool kHasMinimum = true;

  static void unpack(const std::uint8_t* bytes, Block& block) {
    block.scale = load_u16(bytes);
    block.minimum = load_u16(bytes + 2) ^ 0x8000;  // files add it
    take_five_bits(bytes + 4, bytes + 8, block.codes);
  }

  static void pack(const Block& block, std::uint8_t* bytes) {
    store_u16(block.scale, bytes);
    store_u16(block.minimum ^ 0x8000, bytes + 2);
    put_five_bits(block.codes, bytes + 4, bytes + 8);
  }
};

}  // namespace agentkv::cpu
