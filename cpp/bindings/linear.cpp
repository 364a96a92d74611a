// Packing of the weights of linear layers, for the exporter.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/errors.h"
#include "core/message.h"
#include "cpu/blocks/block_weight.h"
#include "cpu/blocks/quantize.h"
#include "cpu/kernels/linear_table.h"
#include "cpu/linear/packed_linear.h"
#include "executorch/threads.h"

namespace nb = nanobind;

namespace agentkv {
namespace {

using Codes = nb::ndarray<const std::int8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

cpu::LinearShape shape_of(const Codes& codes, const Floats& scales, int bits) {
  const auto outputs = static_cast<int>(codes.shape(0)), inputs = static_cast<int>(codes.shape(1));
  const auto groups = static_cast<int>(scales.shape(1));
  require<InvalidTensor>(scales.shape(0) == codes.shape(0) && groups > 0 && inputs % groups == 0, "scales [",
                         scales.shape(0), ", ", groups, "] do not go with codes [", outputs, ", ", inputs, "]");
  return {outputs, inputs, bits, inputs / groups};
}

// Written in place: a vocabulary's weights are too large to be there twice.
nb::bytes room_for(std::size_t n) {
  nb::bytes out = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(n)));
  if (!out.is_valid()) throw nb::python_error();
  return out;
}

std::span<std::byte> bytes_of(nb::bytes& out) {
  return {reinterpret_cast<std::byte*>(PyBytes_AS_STRING(out.ptr())), out.size()};
}

nb::bytes pack(const Codes& codes, const Floats& scales, int bits) {
  const cpu::LinearShape shape = shape_of(codes, scales, bits);
  nb::bytes out = room_for(cpu::packed_linear_bytes(shape));
  const std::span at = bytes_of(out);
  const nb::gil_scoped_release released;
  cpu::pack_linear(shape, {codes.data(), codes.size()}, {scales.data(), scales.size()}, at);
  return out;
}

nb::bytes pack_floats(const Floats& weights) {
  const auto outputs = static_cast<int>(weights.shape(0)), inputs = static_cast<int>(weights.shape(1));
  const cpu::LinearShape shape{outputs, inputs, 32, inputs};
  nb::bytes out = room_for(cpu::packed_linear_bytes(shape));
  const std::span at = bytes_of(out);
  const nb::gil_scoped_release released;
  cpu::pack_floats(shape, {weights.data(), weights.size()}, at);
  return out;
}

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<float, nb::numpy, nb::ndim<2>, nb::c_contig>;

cpu::BlockShape block_shape_of(const Bytes& rows, int type) {
  const cpu::BlockTypeInfo& info = cpu::block_type_info(type);
  const std::size_t blocks = rows.shape(1) / info.bytes;
  require<InvalidTensor>(blocks * info.bytes == rows.shape(1) && blocks <= (1u << 30) / 256, "rows of ", rows.shape(1),
                         " bytes do not divide into blocks of ", info.bytes, ", as ", info.name, " has them");
  return {static_cast<int>(rows.shape(0)), static_cast<int>(blocks) * info.inputs, info.type};
}

struct alignas(64) Line {
  std::byte bytes[64];
};

nb::bytes pack_blocks(const Bytes& rows, int type) {
  const cpu::BlockShape shape = block_shape_of(rows, type);
  nb::bytes out = room_for(cpu::block_panel_bytes(shape));
  const std::span at = bytes_of(out);
  const nb::gil_scoped_release released;
  cpu::pack_blocks(shape, std::as_bytes(std::span(rows.data(), rows.size())), at);
  return out;
}

// Through panels, a few of them at a time, as kernels see the weights.
Rows unpack_blocks(const Bytes& rows, int type) {
  const cpu::BlockShape shape = block_shape_of(rows, type);
  const auto outputs = static_cast<std::size_t>(shape.outputs), inputs = static_cast<std::size_t>(shape.inputs);
  auto out = std::make_unique<float[]>(outputs * inputs);
  {
    const nb::gil_scoped_release released;
    const std::size_t row_bytes = rows.shape(1);
    for (std::size_t first = 0; first < outputs; first += cpu::kPanel) {
      const std::size_t n = std::min<std::size_t>(cpu::kPanel, outputs - first);
      const cpu::BlockShape part{static_cast<int>(n), shape.inputs, shape.type};
      std::vector<Line> panel(cpu::block_panel_bytes(part) / sizeof(Line));
      const std::span bytes = std::as_writable_bytes(std::span(panel));
      cpu::pack_blocks(part, std::as_bytes(std::span(rows.data() + first * row_bytes, n * row_bytes)), bytes);
      const cpu::BlockWeight weight(part, bytes);
      for (std::size_t r = 0; r < n; ++r) {
        weight.read_row(static_cast<int>(r), std::span(out.get() + (first + r) * inputs, inputs));
      }
    }
  }
  float* data = out.release();
  const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  return Rows(data, {outputs, inputs}, owner);
}

using Numbers = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Importance = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using BlockRows = nb::ndarray<std::uint8_t, nb::numpy, nb::ndim<2>, nb::c_contig>;

cpu::BlockType type_of(const Numbers& numbers) {
  if (numbers.dtype() == nb::dtype<float>()) return cpu::BlockType::F32;
  if (numbers.dtype() == nb::dtype<std::uint16_t>()) return cpu::BlockType::BF16;
  require<InvalidTensor>(
      numbers.dtype() == nb::dlpack::dtype{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float), 16, 1},
      "numbers are float32, float16, or bfloat16 as uint16");
  return cpu::BlockType::F16;
}

nb::tuple quantize_blocks(const Numbers& numbers, int type, const std::optional<Importance>& importance) {
  const cpu::BlockType from = type_of(numbers);
  require<InvalidTensor>(numbers.shape(0) <= 1u << 30 && numbers.shape(1) <= 1u << 30, "a weight of ", numbers.shape(0),
                         " outputs and ", numbers.shape(1), " inputs is too large");
  const cpu::BlockShape shape{static_cast<int>(numbers.shape(0)), static_cast<int>(numbers.shape(1)),
                              cpu::block_type_info(type).type};
  const std::size_t row_bytes = cpu::block_row_bytes(shape);
  auto out = std::make_unique_for_overwrite<std::uint8_t[]>(numbers.shape(0) * row_bytes);
  cpu::QuantizationLoss loss;
  {
    const nb::gil_scoped_release released;
    const ForwardGate gate;
    loss =
        cpu::quantize_blocks(shape, from, {static_cast<const std::byte*>(numbers.data()), numbers.nbytes()},
                             importance ? std::span(importance->data(), importance->size()) : std::span<const float>{},
                             std::as_writable_bytes(std::span(out.get(), numbers.shape(0) * row_bytes)), parallel_for);
  }
  std::uint8_t* data = out.release();
  const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<std::uint8_t*>(p); });
  return nb::make_tuple(BlockRows(data, {numbers.shape(0), row_bytes}, owner), loss.lost, loss.whole);
}

nb::list block_types() {
  nb::list all;
  for (const cpu::BlockTypeInfo& info : cpu::block_types()) {
    all.append(nb::make_tuple(static_cast<int>(info.type), nb::str(info.name.data(), info.name.size()), info.inputs,
                              info.bytes));
  }
  return all;
}

}  // namespace
}  // namespace agentkv

void bind_linear(nb::module_& m) {
  using namespace agentkv;
  using namespace nb::literals;
  m.def("pack_linear", &pack, "codes"_a, "scales"_a, "bits"_a,
        "Weights of a linear layer as the CPU's kernels read them: codes int8 [O, I] of 4 or 8 bits, scales float32 "
        "[O, I / group], with 4 bits in groups of 32, 64 or 128, with 8 one for each output. Raises InvalidTensor.");
  m.def("pack_floats", &pack_floats, "weights"_a,
        "Weights of a linear layer that stay float32, as the CPU's kernels read them: weights float32 [O, I]. Raises "
        "InvalidTensor.");
  m.def("pack_blocks", &pack_blocks, "rows"_a, "type"_a,
        "Weights in the blocks of a GGUF file as the CPU's kernels read them: rows uint8 [O, bytes of a row], type the "
        "id that GGUF has for it. Raises InvalidTensor.");
  m.def("unpack_blocks", &unpack_blocks, "rows"_a, "type"_a,
        "What such rows stand for, float32 [O, I], read back from the CPU's layout. Raises InvalidTensor.");
  m.def(
      "quantize_blocks", &quantize_blocks, "numbers"_a, "type"_a, "importance"_a = nb::none(),
      nb::sig("def quantize_blocks(numbers: numpy.typing.NDArray[typing.Any], type: int, importance: "
              "numpy.typing.NDArray[numpy.float32] | None = None) -> tuple[numpy.typing.NDArray[numpy.uint8], float, "
              "float]"),
      "Weights as blocks, made well: numbers [O, I] of float32, float16, or bfloat16 as uint16; type the id that GGUF "
      "has for the blocks; importance [I] what the square of an error at each input counts. Returns the rows "
      "[O, bytes of a row], the squares of their errors, and those of the numbers, summed. The same bits on any "
      "number of threads. Raises InvalidTensor.");
  m.def("block_types", &block_types, nb::sig("def block_types() -> list[tuple[int, str, int, int]]"),
        "The block types that linear layers run as they are: (id, name, inputs of a block, bytes of a block) of each.");
}
