// Q8_0: a scale and 32 codes of 8 bits.
#pragma once

#include "cpu/blocks/format.h"

namespace agentkv::cpu {

struct Q8_0 : FormatDefaults {
  static constexpr BlockType kType = BlockType::Q8_0;
  static constexpr const char* kName = "q8_0";
  static constexpr int kBytes = 34, kBits = 8, kOffset = 128;

  static void unpack(const std::uint8_t* bytes, Block& block) {
    block.scale = load_u16(bytes);
    for (int k = 0; k < 32; ++k) block.codes[k] = bytes[2 + k] ^ 0x80;  // files have a sign
  }

  static void pack(const Block& block, std::uint8_t* bytes) {
    store_u16(block.scale, bytes);
    for (int k = 0; k < 32; ++k) bytes[2 + k] = block.codes[k] ^ 0x80;
  }
};

}  // namespace agentkv::cpu
