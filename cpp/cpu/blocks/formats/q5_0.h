// Q5_0: a scale and 32 codes of 5 bits, their highest ones apart.
#pragma once

#include "cpu/blocks/format.h"

namespace agentkv::cpu {

inline void take_five_bits(const std::uint8_t* high, const std::uint8_t* low, std::uint8_t* codes) {
  take_nibbles(low, codes);
  for (int i = 0; i < 4; ++i) {  // eight at a time: bit j of a byte moves to byte j of a word
    std::uint64_t eight;
    std::memcpy(&eight, codes + 8 * i, sizeof(eight));
    const std::uint64_t apart = high[i] * 0x0101010101010101u & 0x8040201008040201u;
    eight |= ((apart + 0x7f7f7f7f7f7f7f7fu) >> 7 & 0x0101010101010101u) << 4;
    std::memcpy(codes + 8 * i, &eight, sizeof(eight));
  }
}

inline void put_five_bits(const std::uint8_t* codes, std::uint8_t* high, std::uint8_t* low) {
  put_nibbles(codes, low);
  for (int i = 0; i < 4; ++i) {
    high[i] = 0;
    for (int j = 0; j < 8; ++j) high[i] |= static_cast<std::uint8_t>((codes[8 * i + j] >> 4 & 1) << j);
  }
}

struct Q5_0 : FormatDefaults {
  static constexpr BlockType kType = BlockType::Q5_0;
  static constexpr const char* kName = "q5_0";
  static constexpr int kBytes = 22, kBits = 5, kOffset = 16;

  static void unpack(const std::uint8_t* bytes, Block& block) {
    block.scale = load_u16(bytes);
    take_five_bits(bytes + 2, bytes + 6, block.codes);
  }

  static void pack(const Block& block, std::uint8_t* bytes) {
    store_u16(block.scale, bytes);
    put_five_bits(block.codes, bytes + 2, bytes + 6);
  }
};

}  // namespace agentkv::cpu
