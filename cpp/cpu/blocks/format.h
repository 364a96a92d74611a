// The block types of GGUF files: a weight [O, I] whose rows are blocks of inputs, each with scales of its own.
// A type is one file in formats/, and one line in formats.h.
//
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace agentkv::cpu {

// The ids that GGUF files name them by.
enum class BlockType : std::int32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q2_K = 10,
  Q3_K = 11,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  IQ4_NL = 20,
  IQ4_XS = 23,
  BF16 = 30,
  MXFP4 = 39,
};

inline constexpr int kMostBlockInputs = 256;

// One block, apart: weight k of group g = k / kGroup is
//   scale * scales[g] * value(codes[k]) - minimum * minima[g]
// where value(c) is c - kOffset, or kValues[c]. Blocks of one group have no scales[] and no minima[] (they are 1).
struct Block {
  std::uint16_t scale = 0, minimum = 0;  // as 16-bit floats: of kScaleKind, and binary16
  std::int8_t scales[16] = {};
  std::uint8_t minima[16] = {};
  std::uint8_t codes[kMostBlockInputs] = {};
};

// Which 16-bit float a scale is kept as.
enum class ScaleKind { Binary16, Bfloat16 };

// What most formats have; a format derives from it and says what differs. Those that weights can be quantised to (see
// quantize.h) have the way back from a block to its bytes, too: pack.
struct FormatDefaults {
  static constexpr int kInputs = 32;  // of a block
  static constexpr int kGroup = 32;   // inputs that share one of scales[]
  static constexpr int kOffset = 0;
  static constexpr const std::int8_t* kValues = nullptr;
  static constexpr bool kHasMinimum = false;
  static constexpr ScaleKind kScaleKind = ScaleKind::Binary16;
};

inline std::uint16_t load_u16(const std::uint8_t* at) {
  std::uint16_t value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

inline void store_u16(std::uint16_t value, std::uint8_t* at) { std::memcpy(at, &value, sizeof(value)); }

// A few bits of 32 bytes, from bit `from` on, as bits of 32 codes from `to` on.
inline void take_bits(const std::uint8_t* bytes, int from, int mask, int to, std::uint8_t* codes) {
  for (int j = 0; j < 32; ++j) codes[j] |= static_cast<std::uint8_t>((bytes[j] >> from & mask) << to);
}

// The way back: bits of 32 codes, from `from` on, as bits of 32 bytes from `to` on.
inline void put_bits(const std::uint8_t* codes, int from, int mask, int to, std::uint8_t* bytes) {
  for (int j = 0; j < 32; ++j) bytes[j] |= static_cast<std::uint8_t>((codes[j] >> from & mask) << to);
}

// Codes of 4 bits in 16 bytes: inputs 0 to 15 in the low halves, 16 to 31 in the high ones.
inline void take_nibbles(const std::uint8_t* bytes, std::uint8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = bytes[j] & 15;
    codes[j + 16] = bytes[j] >> 4;
  }
}

inline void put_nibbles(const std::uint8_t* codes, std::uint8_t* bytes) {
  for (int j = 0; j < 16; ++j) bytes[j] = static_cast<std::uint8_t>((codes[j] & 15) | codes[j + 16] << 4);
}

}  // namespace agentkv::cpu
