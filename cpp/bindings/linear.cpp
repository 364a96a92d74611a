// Packing of the weights of linear layers, for the exporter.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/errors.h"
#include "core/message.h"
#include "cpu/linear/packed_linear.h"

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
}
