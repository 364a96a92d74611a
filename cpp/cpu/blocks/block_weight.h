// Weights of linear layers and embeddings as the blocks of a GGUF file, in panels that kernels read; no value changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "cpu/blocks/format.h"

namespace agentkv::cpu {

// W [outputs, inputs].
struct BlockShape {
  int outputs = 0, inputs = 0;
  BlockType type = BlockType::F32;

  bool operator==(const BlockShape&) const = default;
};

// What a type is called, and how its rows lie in a file.
struct BlockTypeInfo {
  BlockType type;
  std::string_view name;
  int inputs;         // of a block
  std::size_t bytes;  // of a block
  int group;          // inputs of a block that share one of its scales; 0 where weights are floats
  int format = -1;    // of BlockFormat, where they are codes
};

// All types that are known.
std::span<const BlockTypeInfo> block_types();
// Throws InvalidTensor, naming those that are known, for another id.
const BlockTypeInfo& block_type_info(std::int32_t type);

// Throws InvalidTensor where no such weight can be kept: rows must divide into blocks.
void check_block_shape(const BlockShape& shape);
std::size_t block_row_bytes(const BlockShape& shape);    // of a row in a file
std::size_t block_panel_bytes(const BlockShape& shape);  // of the whole weight in panels

// rows [outputs][block_row_bytes(shape)] as a file has them -> out [block_panel_bytes(shape)]. Throws InvalidTensor,
// and writes nothing, for an invalid shape, lengths that do not fit it, or a scale that is not finite.
void pack_blocks(const BlockShape& shape, std::span<const std::byte> rows, std::span<std::byte> out);

// Weights in panels, wherever they lie.
class BlockWeight {
 public:
  // data: as pack_blocks wrote it, of the same shape; it must outlive this. Throws InvalidTensor for an invalid shape,
  // another length, or an address that is no multiple of 64.
  BlockWeight(const BlockShape& shape, std::span<const std::byte> data);

  const BlockShape& shape() const { return shape_; }
  std::size_t panel_bytes() const { return panel_bytes_; }
  const std::byte* panel(int index) const { return data_ + static_cast<std::size_t>(index) * panel_bytes_; }

  // Row `output` as floats [inputs], to the bit what the file's blocks stand for.
  void read_row(int output, std::span<float> out) const;

 private:
  BlockShape shape_;
  const std::byte* data_;
  std::size_t panel_bytes_;
};

}  // namespace agentkv::cpu
