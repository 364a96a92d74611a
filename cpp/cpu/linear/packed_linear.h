// Weights of a linear layer as the kernels read them: one layout for any number of rows and every instruction set,
// which can be written to a file and used where it is mapped. kernels/linear_table.h describes the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace agentkv::cpu {

// W [outputs, inputs] as integers times scales, or as float32.
struct LinearShape {
  int outputs = 0, inputs = 0;
  int bits = 4;    // 4: codes of [-8, 7]; 8: codes of [-128, 127]; 32: floats
  int group = 32;  // inputs that share a scale: 32, 64 or 128 with 4 bits, all of them with 8 and 32

  bool operator==(const LinearShape&) const = default;
};

// Throws InvalidTensor where no such weight can be kept: inputs must divide into groups, and with 8 bits there are at
// most 65,536 (sums stay below 2^31).
void check_linear_shape(const LinearShape& shape);

std::size_t packed_linear_bytes(const LinearShape& shape);

// codes [outputs, inputs], scales [outputs, inputs / group], row by row -> out [packed_linear_bytes(shape)]. With 4
// bits scales become the nearest bfloat16. Throws InvalidTensor, and writes nothing, for an invalid shape, lengths that
// do not fit it, a code of more than its bits, or a scale that is not finite or of magnitude 2^100 and more.
void pack_linear(const LinearShape& shape, std::span<const std::int8_t> codes, std::span<const float> scales,
                 std::span<std::byte> out);

// weights [outputs, inputs], row by row, of a shape with 32 bits. Throws InvalidTensor, and writes nothing, where
// lengths do not fit it.
void pack_floats(const LinearShape& shape, std::span<const float> weights, std::span<std::byte> out);

// Packed weights, wherever they lie: what a linear layer multiplies with.
class PackedLinear {
 public:
  // data: as pack_linear wrote it, of the same shape; it must outlive this. Throws InvalidTensor for an invalid shape,
  // another length, or an address that is no multiple of 64.
  PackedLinear(const LinearShape& shape, std::span<const std::byte> data);

  const LinearShape& shape() const { return shape_; }
  std::size_t panel_bytes() const { return panel_bytes_; }
  const std::byte* panel(int index) const { return data_ + static_cast<std::size_t>(index) * panel_bytes_; }

 private:
  LinearShape shape_;
  const std::byte* data_;
  std::size_t panel_bytes_;
};

}  // namespace agentkv::cpu
