// MXFP4: 32 floats of 4 bits (E2M1) and an exponent that they share (E8M0).
//
// Spec: OCP Microscaling Formats (MX), version 1.0.
#pragma once

#include "cpu/blocks/format.h"

namespace agentkv::cpu {

// Twice what the codes stand for, so that these are integers.
inline constexpr std::int8_t kFloat4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct MXFP4 : FormatDefaults {
  static constexpr BlockType kType = BlockType::MXFP4;
  static constexpr const char* kName = "mxfp4";
  static constexpr int kBytes = 17, kBits = 4;
  static constexpr const std::int8_t* kValues = kFloat4Values;
  static constexpr ScaleKind kScaleKind = ScaleKind::Bfloat16;

  static void unpack(const std::uint8_t* bytes, Block& block) {
    // 2^(e - 128), half of what the exponent says; the two least are subnormal, and 255 is no number.
    const int e = bytes[0];
    block.scale = static_cast<std::uint16_t>(e == 255 ? 0x7fc0 : e < 2 ? 0x20 << e : (e - 1) << 7);
    take_nibbles(bytes + 1, block.codes);
  }
};

}  // namespace agentkv::cpu
