// Q5_K: 8 groups of 32 codes of 5 bits, their highest ones apart; each has a scale and a minimum of 6 bits.
#pragma once

#include "cpu/blocks/formats/q4_k.h"

namespace agentkv::cpu {

struct Q5_K : FormatDefaults {
  static constexpr BlockType kType = BlockType::Q5_K;
  static constexpr const char* kName = "q5_k";
  static constexpr int kInputs = 256, kBytes = 176, kBits = 5;
  static constexpr bool kHasMinimum = true;

  static void unpack(const std::uint8_t* bytes, Block& block) {
    block.scale = load_u16(bytes);
    block.minimum = load_u16(bytes + 2);
    take_six_bit_scales(bytes + 4, block);
    take_paired_nibbles(bytes + 48, block.codes);
    for (int c = 0; c < 8; ++c) take_bits(bytes + 16, c, 1, 4, block.codes + 32 * c);
  }

  static void pack(const Block& block, std::uint8_t* bytes) {
    std::memset(bytes, 0, kBytes);
    store_u16(block.scale, bytes);
    store_u16(block.minimum, bytes + 2);
    put_six_bit_scales(block, bytes + 4);
    put_paired_nibbles(block.codes, bytes + 48);
    for (int c = 0; c < 8; ++c) put_bits(block.codes + 32 * c, 4, 1, c, bytes + 16);
  }
};

}  // namespace agentkv::cpu
