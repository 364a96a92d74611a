// A block of one output into its panel, and out of it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/blocks/panel_layout.h"

namespace agentkv::cpu {

inline float float_of(ScaleKind kind, std::uint16_t bits) {
  const auto wide = std::uint32_t{bits};
  if (kind == ScaleKind::Bfloat16) return std::bit_cast<float>(wide << 16);
  // The exponent, shifted into place, is off by a factor of 2^112; the product is exact, of subnormals too.
  const auto magnitude = std::bit_cast<float>((wide & 0x7fff) << 13) * 0x1p112f;
  const std::uint32_t special = (wide & 0x7fff) >= 0x7c00 ? 0x7f800000u : 0u;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | special | (wide & 0x8000) << 16);
}

// Of the 32 codes of a chunk, `kBits` from `kFrom` on: into one output's four bytes of each plane, a quad of codes in a
// word at a time.
template <int kBits, int kFrom>
void put_planes(const std::uint8_t* codes, unsigned char* planes) {
  constexpr int kQuads = 8 / kBits;  // in a byte of a plane
  constexpr std::uint32_t kMask = 0x01010101u * ((1 << kBits) - 1);
  for (int plane = 0; plane < kBits; ++plane) {
    std::uint32_t bytes = 0;
    for (int i = 0; i < kQuads; ++i) {
      std::uint32_t quad;
      std::memcpy(&quad, codes + 4 * (plane * kQuads + i), sizeof(quad));
      bytes |= (quad >> kFrom & kMask) << kBits * i;
    }
    std::memcpy(planes + 64 * plane, &bytes, sizeof(bytes));
  }
}

// `at`: the block's bytes of a panel.
template <class F>
void put_block(const Block& block, int n, std::byte* at) {
  using Layout = PanelLayout<F>;
  auto* bytes = reinterpret_cast<unsigned char*>(at);
  std::memcpy(at + 2 * n, &block.scale, 2);
  if constexpr (F::kHasMinimum) std::memcpy(at + Layout::kMinimumAt + 2 * n, &block.minimum, 2);
  if constexpr (Layout::kHasGroups) {
    for (int g = 0; g < Layout::kGroups; ++g) {
      bytes[Layout::kScalesAt + static_cast<std::size_t>(g * kPanel + n)] = static_cast<unsigned char>(block.scales[g]);
      if constexpr (F::kHasMinimum) {
        bytes[Layout::kMinimaAt + static_cast<std::size_t>((g / 2 * kPanel + n) * 2 + g % 2)] = block.minima[g];
      }
    }
  }
  for (int k = 0; k < F::kInputs; k += kChunkInputs) {
    unsigned char* chunk = bytes + Layout::chunk_at(k, n) + Layout::lane(0, n);
    put_planes<Layout::kLowBits, 0>(block.codes + k, chunk);
    if constexpr (Layout::kHighBits > 0) {
      put_planes<Layout::kHighBits, Layout::kLowBits>(block.codes + k, chunk + Layout::kHighAt);
    }
  }
}

template <class F>
Block get_block(const std::byte* at, int n) {
  using Layout = PanelLayout<F>;
  const auto* bytes = reinterpret_cast<const unsigned char*>(at);
  Block block;
  std::memcpy(&block.scale, at + 2 * n, 2);
  if constexpr (F::kHasMinimum) std::memcpy(&block.minimum, at + Layout::kMinimumAt + 2 * n, 2);
  if constexpr (Layout::kHasGroups) {
    for (int g = 0; g < Layout::kGroups; ++g) {
      block.scales[g] = static_cast<std::int8_t>(bytes[Layout::kScalesAt + static_cast<std::size_t>(g * kPanel + n)]);
      if constexpr (F::kHasMinimum) {
        block.minima[g] = bytes[Layout::kMinimaAt + static_cast<std::size_t>((g / 2 * kPanel + n) * 2 + g % 2)];
      }
    }
  }
  const auto get = [&](int bits, std::size_t plane, int k) {
    return bytes[plane + Layout::byte_at(bits, k, n)] >> Layout::shift(bits, k) & ((1 << bits) - 1);
  };
  for (int k = 0; k < F::kInputs; ++k) {
    const std::size_t chunk = Layout::chunk_at(k, n);
    int code = get(Layout::kLowBits, chunk, k);
    if constexpr (Layout::kHighBits > 0) {
      code |= get(Layout::kHighBits, chunk + Layout::kHighAt, k) << Layout::kLowBits;
    }
    block.codes[k] = static_cast<std::uint8_t>(code);
  }
  return block;
}

// The weights that a block stands for: one product of scales, one with the code, one difference, each rounded.
template <class F>
void block_values(const Block& block, float* out) {
  const float scale = float_of(F::kScaleKind, block.scale), minimum = float_of(ScaleKind::Binary16, block.minimum);
  for (int k = 0; k < F::kInputs; ++k) {
    const int g = k / F::kGroup;
    const bool groups = PanelLayout<F>::kHasGroups;
    const int code = F::kValues == nullptr ? block.codes[k] - F::kOffset : F::kValues[block.codes[k]];
    const float value = (groups ? scale * block.scales[g] : scale) * static_cast<float>(code);
    if constexpr (F::kHasMinimum) {
      out[k] = value - (groups ? minimum * block.minima[g] : minimum);
    } else {
      out[k] = value;
    }
  }
}

}  // namespace agentkv::cpu
