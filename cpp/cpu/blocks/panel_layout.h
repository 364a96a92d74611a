// How a panel of kPanel outputs keeps a block of inputs, for each format. Nothing of a file's values changes: they are
// put where kernels read them one vector after another.
//
//   scale   [kPanel] 16-bit floats
//   minimum [kPanel] binary16                       where the format has one
//   scales  [kGroups][kPanel] int8                  where a block has groups
//   minima  [kGroups / 2][kPanel][2] uint8          where it has groups and a minimum
//   codes   [kPanel / 16][kInputs / 32][chunk]      chunk: 32 inputs of 16 outputs
//
// A chunk is planes of 64 bytes, byte 4 n + j of each being of output n and of inputs 4 q + j, the quads q of the
// chunk:
//   8 bits: plane q
//   4 bits: plane q / 2, the low half of its bytes where q is even
//   2 bits: plane q / 4, bits 2 (q % 4) of its bytes
//   1 bit:  one plane, bit q of its bytes
// Codes of 5 and 6 bits are their low 4 and then the rest; codes of 3 bits their low 2 and then one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/blocks/format.h"
#include "cpu/kernels/linear_table.h"

namespace agentkv::cpu {

inline constexpr int kChunkInputs = 32;

template <class F>
struct PanelLayout {
  static constexpr int kGroups = F::kInputs / F::kGroup;
  static constexpr bool kHasGroups = kGroups > 1;
  static constexpr int kLowBits = F::kBits == 8 ? 8 : F::kBits >= 4 ? 4 : 2;
  static constexpr int kHighBits = F::kBits - kLowBits;

  static constexpr std::size_t kMinimumAt = 2 * kPanel;
  static constexpr std::size_t kScalesAt = kMinimumAt + (F::kHasMinimum ? 2 * kPanel : 0);
  static constexpr std::size_t kMinimaAt = kScalesAt + (kHasGroups ? kGroups * kPanel : 0);
  static constexpr std::size_t kCodesAt = kMinimaAt + (kHasGroups && F::kHasMinimum ? kGroups * kPanel : 0);
  static constexpr std::size_t kChunkBytes = 64 * F::kBits;
  static constexpr std::size_t kHighAt = 64 * kLowBits;  // in a chunk
  static constexpr std::size_t kHalfBytes = F::kInputs / kChunkInputs * kChunkBytes;
  static constexpr std::size_t kBlockBytes = kCodesAt + kPanel / 16 * kHalfBytes;

  // Of input k (in the block) and output n (in the panel): its chunk, and where its byte lies in a plane.
  static constexpr std::size_t chunk_at(int k, int n) {
    return kCodesAt + static_cast<std::size_t>(n / 16) * kHalfBytes +
           static_cast<std::size_t>(k / kChunkInputs) * kChunkBytes;
  }
  static constexpr std::size_t lane(int k, int n) { return static_cast<std::size_t>(n % 16 * 4 + k % 4); }

  // The byte of a plane of `bits`, and how far its code is shifted in it.
  static constexpr std::size_t byte_at(int bits, int k, int n) {
    const int quad = k % kChunkInputs / 4;
    return static_cast<std::size_t>(quad * bits / 8) * 64 + lane(k, n);
  }
  static constexpr int shift(int bits, int k) { return k % kChunkInputs / 4 * bits % 8; }
};

}  // namespace agentkv::cpu
