#include "cpu/blocks/block_weight.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "core/errors.h"
#include "core/message.h"
#include "cpu/blocks/formats.h"
#include "cpu/blocks/packing.h"

namespace agentkv::cpu {
namespace {

constexpr float kScaleLimit = 0x1p100f;  // products with larger ones could overflow

// What is done with a type, whichever it is.
struct Type {
  BlockTypeInfo info;
  std::size_t panel_bytes;  // of one block of a panel
  // Whether all numbers of a file's block are some.
  bool (*is_sound)(const std::uint8_t* bytes);
  void (*put)(const std::uint8_t* bytes, int n, std::byte* at);
  void (*get)(const std::byte* at, int n, float* out);
};

bool is_scale(float x) { return std::abs(x) < kScaleLimit; }

template <class F>
Block unpacked(const std::uint8_t* bytes) {
  Block block;
  F::unpack(bytes, block);
  return block;
}

template <class F, BlockFormat kFormat>
constexpr Type coded() {
  return {.info = {F::kType, F::kName, F::kInputs, F::kBytes, F::kGroup, static_cast<int>(kFormat)},
          .panel_bytes = PanelLayout<F>::kBlockBytes,
          .is_sound =
              [](const std::uint8_t* bytes) {
                const Block block = unpacked<F>(bytes);
                return is_scale(float_of(F::kScaleKind, block.scale)) &&
                       is_scale(float_of(ScaleKind::Binary16, block.minimum));
              },
          .put = [](const std::uint8_t* bytes, int n, std::byte* at) { put_block<F>(unpacked<F>(bytes), n, at); },
          .get = [](const std::byte* at, int n, float* out) { block_values<F>(get_block<F>(at, n), out); }};
}

template <ScaleKind kKind>
float half_of(const std::uint8_t* bytes) {
  return float_of(kKind, load_u16(bytes));
}
float single_of(const std::uint8_t* bytes) {
  float x;
  std::memcpy(&x, bytes, sizeof(x));
  return x;
}

// Floats are blocks of one input: [K][kPanel].
template <BlockType kType, int kBytes, float (*kFloat)(const std::uint8_t*)>
constexpr Type floats(std::string_view name) {
  return {.info = {kType, name, 1, kBytes, 0},
          .panel_bytes = std::size_t{kBytes} * kPanel,
          .is_sound = [](const std::uint8_t* bytes) { return std::isfinite(kFloat(bytes)); },
          .put = [](const std::uint8_t* bytes, int n, std::byte* at) { std::memcpy(at + kBytes * n, bytes, kBytes); },
          .get = [](const std::byte* at, int n,
                    float* out) { *out = kFloat(reinterpret_cast<const std::uint8_t*>(at) + kBytes * n); }};
}

#define AGENTKV_CODED_TYPE(F) coded<F, BlockFormat::F>(),
constexpr Type kTypes[] = {AGENTKV_EACH_BLOCK_FORMAT(AGENTKV_CODED_TYPE)  // in the order of BlockFormat
                           floats<BlockType::F32, 4, single_of>("f32"),
                           floats<BlockType::F16, 2, half_of<ScaleKind::Binary16>>("f16"),
                           floats<BlockType::BF16, 2, half_of<ScaleKind::Bfloat16>>("bf16")};
#undef AGENTKV_CODED_TYPE

const Type& type_of(std::int32_t id) {
  const auto* found =
      std::ranges::find_if(kTypes, [&](const Type& type) { return static_cast<std::int32_t>(type.info.type) == id; });
  if (found != std::end(kTypes)) return *found;
  std::string names;
  for (const Type& type : kTypes) names += (names.empty() ? "" : ", ") + std::string(type.info.name);
  throw InvalidTensor(error_text("block type ", id, " is not known, only ", names));
}

const Type& type_of(const BlockShape& shape) { return type_of(static_cast<std::int32_t>(shape.type)); }

std::size_t blocks_of(const BlockShape& shape) {
  return static_cast<std::size_t>(shape.inputs) / static_cast<std::size_t>(type_of(shape).info.inputs);
}

}  // namespace

std::span<const BlockTypeInfo> block_types() {
  static const auto infos = [] {
    std::array<BlockTypeInfo, std::size(kTypes)> all{};
    std::ranges::transform(kTypes, all.begin(), [](const Type& type) { return type.info; });
    return all;
  }();
  return infos;
}

const BlockTypeInfo& block_type_info(std::int32_t type) { return type_of(type).info; }

void check_block_shape(const BlockShape& shape) {
  const BlockTypeInfo& info = type_of(shape).info;
  require<InvalidTensor>(shape.outputs > 0 && shape.inputs > 0, "a weight of ", shape.outputs, " outputs and ",
                         shape.inputs, " inputs: give at least one of each");
  require<InvalidTensor>(shape.inputs % info.inputs == 0, shape.inputs, " inputs do not divide into blocks of ",
                         info.inputs, ", as ", info.name, " has them");
}

std::size_t block_row_bytes(const BlockShape& shape) {
  check_block_shape(shape);
  return blocks_of(shape) * type_of(shape).info.bytes;
}

std::size_t block_panel_bytes(const BlockShape& shape) {
  check_block_shape(shape);
  const auto panels = static_cast<std::size_t>((shape.outputs + kPanel - 1) / kPanel);
  return panels * blocks_of(shape) * type_of(shape).panel_bytes;
}

void pack_blocks(const BlockShape& shape, std::span<const std::byte> rows, std::span<std::byte> out) {
  const std::size_t row_bytes = block_row_bytes(shape), panel_bytes = block_panel_bytes(shape);
  const auto outputs = static_cast<std::size_t>(shape.outputs);
  require<InvalidTensor>(rows.size() == outputs * row_bytes, rows.size(), " bytes for rows of ", outputs * row_bytes);
  require<InvalidTensor>(out.size() == panel_bytes, out.size(), " bytes for a packed weight of ", panel_bytes);
  const Type& type = type_of(shape);
  const std::size_t blocks = blocks_of(shape);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(rows.data());
  for (std::size_t i = 0; i < outputs * blocks; ++i) {
    require<InvalidTensor>(type.is_sound(bytes + i * type.info.bytes), "block ", i % blocks, " of output ", i / blocks,
                           " has a scale or a weight that is not finite, or of magnitude 2^100 and more");
  }
  std::memset(out.data(), 0, out.size());
  for (std::size_t n = 0; n < outputs; ++n) {
    std::byte* panel = out.data() + n / kPanel * blocks * type.panel_bytes;
    for (std::size_t b = 0; b < blocks; ++b) {
      type.put(bytes + n * row_bytes + b * type.info.bytes, static_cast<int>(n % kPanel), panel + b * type.panel_bytes);
    }
  }
}

BlockWeight::BlockWeight(const BlockShape& shape, std::span<const std::byte> data)
    : shape_(shape), data_(data.data()), panel_bytes_(0) {
  const std::size_t bytes = block_panel_bytes(shape);
  panel_bytes_ = blocks_of(shape) * type_of(shape).panel_bytes;
  require<InvalidTensor>(data.size() == bytes, data.size(), " bytes for a packed weight of ", bytes);
  require<InvalidTensor>(reinterpret_cast<std::uintptr_t>(data.data()) % 64 == 0,
                         "packed weights start at an address that is no multiple of 64: align them");
}

void BlockWeight::read_row(int output, std::span<float> out) const {
  require<InvalidTensor>(output >= 0 && output < shape_.outputs, "row ", output, " of ", shape_.outputs);
  require<InvalidTensor>(out.size() == static_cast<std::size_t>(shape_.inputs), out.size(), " floats for a row of ",
                         shape_.inputs);
  const Type& type = type_of(shape_);
  const std::byte* at = panel(output / kPanel);
  for (std::size_t b = 0; b < blocks_of(shape_); ++b) {
    type.get(at + b * type.panel_bytes, output % kPanel, out.data() + b * static_cast<std::size_t>(type.info.inputs));
  }
}

}  // namespace agentkv::cpu
