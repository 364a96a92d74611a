// Q4_K: 8 groups of 32 codes of 4 bits; each has a scale and a minimum of 6 bits.
#pragma once

#include "cpu/blocks/format.h"

namespace agentkv::cpu {

// 8 scales and 8 minima of 6 bits in 12 bytes: those of groups 0 to 3 first, whose high bits hold the rest of the
// others.
inline void take_six_bit_scales(const std::uint8_t* bytes, Block& block) {
  for (int g = 0; g < 4; ++g) {
    block.scales[g] = static_cast<std::int8_t>(bytes[g] & 63);
    block.minima[g] = bytes[g + 4] & 63;
    block.scales[g + 4] = static_cast<std::int8_t>((bytes[g + 8] & 15) | bytes[g] >> 6 << 4);
    block.minima[g + 4] = static_cast<std::uint8_t>(bytes[g + 8] >> 4 | bytes[g + 4] >> 6 << 4);
  }
}

// Codes of 4 bits in 128 bytes: of each 32, the low halves are one group and the high ones the next.
inline void take_paired_nibbles(const std::uint8_t* bytes, std::uint8_t* codes) {
  for (int c = 0; c < 8; ++c) take_bits(bytes + c / 2 * 32, c % 2 * 4, 15, 0, codes + 32 * c);
}

inline void put_six_bit_scales(const Block& block, std::uint8_t* bytes) {
  for (int g = 0; g < 4; ++g) {
    const int scale = block.scales[g + 4], minimum = block.minima[g + 4];
    bytes[g] = static_cast<std::uint8_t>(block.scales[g] | scale >> 4 << 6);
    bytes[g + 4] = static_cast<std::uint8_t>(block.minima[g] | minimum >> 4 << 6);
    bytes[g + 8] = static_cast<std::uint8_t>((scale & 15) | (minimum & 15) << 4);
  }
}

inline void put_paired_nibbles(const std::uint8_t* codes, std::uint8_t* bytes) {
  for (int c = 0; c < 8; ++c) put_bits(codes + 32 * c, 0, 15, c % 2 * 4, bytes + c / 2 * 32);
}

struct Q4_K : FormatDefaults {
  static constexpr BlockType kType = BlockType::Q4_K;
  static constexpr const char* kName = "q4_k";
  static constexpr int kInputs = 256, kBytes = 144, kBits = 4;
  static constexpr bool kHasMinimum = true;

  static void unpack(const std::uint8_t* bytes, Block& block) {
    block.scale = load_u16(bytes);
    block.minimum = load_u16(bytes + 2);
    take_six_bit_scales(bytes + 4, block);
    take_paired_nibbles(bytes + 16, block.codes);
  }

  static void pack(const Block& block, std::uint8_t* bytes) {
    std::memset(bytes, 0, kBytes);
    store_u16(block.scale, bytes);
    store_u16(block.minimum, bytes + 2);
    put_six_bit_scales(block, bytes + 4);
    put_paired_nibbles(block.codes, bytes + 16);
  }
};

}  // namespace agentkv::cpu
