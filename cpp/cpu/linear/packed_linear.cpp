#include "cpu/linear/packed_linear.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/errors.h"
#include "core/message.h"
#include "cpu/kernels/linear_table.h"

namespace agentkv::cpu {
namespace {

constexpr int kMaxByteInputs = 1 << 16;
constexpr float kScaleLimit = 0x1p100f;  // products with larger ones could overflow

// What is kept has groups of at most 64: two of them have one scale where a group is 128.
int kept_group(const LinearShape& shape) { return std::min(shape.group, 64); }

int n_panels(const LinearShape& shape) { return (shape.outputs + kPanel - 1) / kPanel; }

std::size_t bytes_of_panel(const LinearShape& shape) {
  const auto inputs = static_cast<std::size_t>(shape.inputs);
  if (shape.bits == 32) return kPanel * sizeof(float) * inputs;
  if (shape.bits == 8) return kPanel * (2 * sizeof(float) + (inputs + kInputs - 1) / kInputs * kInputs);
  const auto groups = inputs / static_cast<std::size_t>(kept_group(shape));
  return kPanel * (sizeof(float) + groups * sizeof(std::uint16_t) + inputs / 2);
}

// To nearest, ties to even; x is finite.
std::uint16_t to_bfloat16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float from_bfloat16(std::uint16_t x) { return std::bit_cast<float>(std::uint32_t{x} << 16); }

struct Source {
  const LinearShape& shape;
  const std::int8_t* codes;
  const float* scales;

  int groups() const { return shape.inputs / shape.group; }
  float scale(int output, int group) const {
    return scales[static_cast<std::size_t>(output) * static_cast<std::size_t>(groups()) +
                  static_cast<std::size_t>(group)];
  }
  const std::int8_t* row(int output) const {
    return codes + static_cast<std::size_t>(output) * static_cast<std::size_t>(shape.inputs);
  }
};

// The 4-bit codes and scales of output n of a panel; returns its column.
float pack_nibbles(const Source& from, int output, int n, std::byte* panel) {
  const int group = kept_group(from.shape);
  const std::int8_t* row = from.row(output);
  std::byte* at = panel + kPanel * sizeof(float);
  double column = 0;
  for (int first = 0; first < from.shape.inputs; first += group) {
    const std::uint16_t scale = to_bfloat16(from.scale(output, first / from.shape.group));
    std::memcpy(at + static_cast<std::size_t>(n) * sizeof(scale), &scale, sizeof(scale));
    auto* bytes = reinterpret_cast<unsigned char*>(at) + kPanel * sizeof(scale) + n / 16 * (group * 8) + n % 16 * 4;
    int sum = 0;
    for (int k = 0; k < group; ++k) {
      const int code = row[first + k];
      sum += code;
      bytes[k / 8 * 64 + k % 4] |= static_cast<unsigned char>((code + 8) << (k % 8 < 4 ? 0 : 4));
    }
    column += double{from_bfloat16(scale)} * sum;
    at += kPanel * (sizeof(scale) + static_cast<std::size_t>(group) / 2);
  }
  return static_cast<float>(column);
}

float pack_bytes(const Source& from, int output, int n, std::byte* panel) {
  const std::int8_t* row = from.row(output);
  const float scale = from.scale(output, 0);
  std::memcpy(panel + (kPanel + n) * static_cast<int>(sizeof(float)), &scale, sizeof(scale));
  auto* bytes = reinterpret_cast<unsigned char*>(panel) + 2 * kPanel * sizeof(float) + n * 4;
  int sum = 0;
  for (int k = 0; k < from.shape.inputs; ++k) {
    sum += row[k];
    bytes[k / 4 * (4 * kPanel) + k % 4] = static_cast<unsigned char>(row[k] + 128);
  }
  return static_cast<float>(double{scale} * sum);
}

// Everything that no output takes: scales of zero, and codes of zero where those are kept plus 128.
void clear_panel(const LinearShape& shape, std::byte* panel) {
  const std::size_t bytes = bytes_of_panel(shape), header = shape.bits == 8 ? 2 * kPanel * sizeof(float) : bytes;
  std::memset(panel, 0, header);
  std::memset(panel + header, 128, bytes - header);
}

}  // namespace

void check_linear_shape(const LinearShape& shape) {
  require<InvalidTensor>(shape.outputs > 0 && shape.inputs > 0, "a weight of ", shape.outputs, " outputs and ",
                         shape.inputs, " inputs: give at least one of each");
  if (shape.bits == 8 || shape.bits == 32) {
    require<InvalidTensor>(shape.group == shape.inputs, "a group of ", shape.group, " inputs: with ", shape.bits,
                           " bits all ", shape.inputs, " share a scale");
    require<InvalidTensor>(shape.bits == 32 || shape.inputs <= kMaxByteInputs, shape.inputs,
                           " inputs: at 8 bits at most ", kMaxByteInputs);
    return;
  }
  require<InvalidTensor>(shape.bits == 4, "weights of ", shape.bits, " bits: 4, 8 and 32 are known");
  require<InvalidTensor>(shape.group == 32 || shape.group == 64 || shape.group == 128, "a group of ", shape.group,
                         " inputs: with 4 bits 32, 64 or 128 share a scale");
  require<InvalidTensor>(shape.inputs % shape.group == 0, shape.inputs, " inputs do not divide into groups of ",
                         shape.group);
}

std::size_t packed_linear_bytes(const LinearShape& shape) {
  check_linear_shape(shape);
  return bytes_of_panel(shape) * static_cast<std::size_t>(n_panels(shape));
}

void pack_linear(const LinearShape& shape, std::span<const std::int8_t> codes, std::span<const float> scales,
                 std::span<std::byte> out) {
  const std::size_t bytes = packed_linear_bytes(shape);
  const auto outputs = static_cast<std::size_t>(shape.outputs), inputs = static_cast<std::size_t>(shape.inputs);
  require<InvalidTensor>(shape.bits != 32, "floats have no codes");
  require<InvalidTensor>(codes.size() == outputs * inputs, codes.size(), " codes for a weight of ", outputs * inputs);
  const std::size_t groups = outputs * (inputs / static_cast<std::size_t>(shape.group));
  require<InvalidTensor>(scales.size() == groups, scales.size(), " scales for ", groups, " groups");
  require<InvalidTensor>(out.size() == bytes, out.size(), " bytes for a packed weight of ", bytes);
  if (shape.bits == 4) {
    const auto wide = std::ranges::find_if(codes, [](int code) { return code < -8 || code > 7; });
    require<InvalidTensor>(wide == codes.end(), "a code of 4 bits lies in [-8, 7], and one is outside");
  }
  const auto strange = std::ranges::find_if(scales, [](float scale) { return !(std::abs(scale) < kScaleLimit); });
  require<InvalidTensor>(strange == scales.end(), "a scale is not finite, or of magnitude 2^100 and more");

  const Source from{shape, codes.data(), scales.data()};
  for (int p = 0; p < n_panels(shape); ++p) {
    std::byte* panel = out.data() + static_cast<std::size_t>(p) * bytes_of_panel(shape);
    clear_panel(shape, panel);
    for (int n = 0; n < std::min(kPanel, shape.outputs - p * kPanel); ++n) {
      const float column = (shape.bits == 8 ? pack_bytes : pack_nibbles)(from, p * kPanel + n, n, panel);
      std::memcpy(panel + static_cast<std::size_t>(n) * sizeof(float), &column, sizeof(column));
    }
  }
}

void pack_floats(const LinearShape& shape, std::span<const float> weights, std::span<std::byte> out) {
  const std::size_t bytes = packed_linear_bytes(shape);
  const auto outputs = static_cast<std::size_t>(shape.outputs), inputs = static_cast<std::size_t>(shape.inputs);
  require<InvalidTensor>(shape.bits == 32, "floats for weights of ", shape.bits, " bits");
  require<InvalidTensor>(weights.size() == outputs * inputs, weights.size(), " floats for a weight of ",
                         outputs * inputs);
  require<InvalidTensor>(out.size() == bytes, out.size(), " bytes for a packed weight of ", bytes);
  auto* panels = reinterpret_cast<float*>(out.data());
  std::ranges::fill(std::span(panels, bytes / sizeof(float)), 0.0f);
  for (std::size_t n = 0; n < outputs; ++n) {
    float* column = panels + n / kPanel * kPanel * inputs + n % kPanel;
    for (std::size_t k = 0; k < inputs; ++k) column[k * kPanel] = weights[n * inputs + k];
  }
}

PackedLinear::PackedLinear(const LinearShape& shape, std::span<const std::byte> data)
    : shape_(shape), data_(data.data()), panel_bytes_(0) {
  const std::size_t bytes = packed_linear_bytes(shape);
  panel_bytes_ = bytes_of_panel(shape);
  require<InvalidTensor>(data.size() == bytes, data.size(), " bytes for a packed weight of ", bytes);
  require<InvalidTensor>(reinterpret_cast<std::uintptr_t>(data.data()) % 64 == 0,
                         "packed weights start at an address that is no multiple of 64: align them");
}

}  // namespace agentkv::cpu
