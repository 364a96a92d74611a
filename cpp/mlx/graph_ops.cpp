#include "mlx/graph_ops.h"

#include <mlx/ops.h>

#include <array>
#include <limits>

namespace agentkv::mlx {
namespace {

constexpr std::uint32_t kOpcodes = 128;

void check_range(std::int64_t index, std::int64_t least, std::int64_t bound) {
  if (index < least || index >= bound) refuse("index ", index, " is outside the ", bound, " rows");
}

}  // namespace

const Op* find_op(std::uint32_t opcode) {
  static const auto table = [] {
    std::array<const Op*, kOpcodes> ops{};
    for (const auto group : {product_ops(), layer_ops(), mixer_ops(), choice_ops(), shape_ops(), elementwise_ops()}) {
      for (const Op& op : group) ops.at(op.opcode) = &op;
    }
    return ops;
  }();
  return opcode < kOpcodes ? table[opcode] : nullptr;
}

void Count::check(std::size_t n, const char* what) const {
  if (n < least || n > most) refuse(n, " ", what);
}

std::span<const std::int64_t> Frame::host_ints(std::int32_t value) const {
  const auto index = static_cast<std::size_t>(value);
  if (index >= inputs.size() || inputs[index].dtype != mx::int64) return {};
  return {static_cast<const std::int64_t*>(inputs[index].data), values[index]->size()};
}

const mx::array& Call::derived(std::size_t i, mx::array (*make)(const mx::array&)) const {
  const auto found = frame.derived.find(instruction.args[i]);
  if (found != frame.derived.end()) return found->second;
  return frame.derived.emplace(instruction.args[i], make(arg(i))).first->second;
}

int narrow(std::int64_t value) {
  if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max()) {
    refuse(value, " is out of range");
  }
  return static_cast<int>(value);
}

int axis_of(const mx::array& x, std::int64_t axis) {
  const auto rank = static_cast<std::int64_t>(x.ndim());
  if (axis < -rank || axis >= rank) refuse("no dimension ", axis);
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

void check_position(std::int32_t value, const GraphBlob& blob) {
  const auto index = static_cast<std::size_t>(value);
  if (index >= blob.inputs.size() || blob.inputs[index].dtype != mx::int64 || blob.inputs[index].sizes.size() != 1) {
    refuse("positions are no int64 input of one dimension");
  }
}

void check_vector(const std::optional<mx::array>& x, int size, const char* name) {
  if (x && (x->ndim() != 1 || x->shape(0) != size)) refuse("its ", name, " does not have ", size, " elements");
}

void check_floats(const mx::array& x) {
  if (x.ndim() < 1 || !mx::issubdtype(x.dtype(), mx::floating)) refuse("rows that are no floats");
}

void check_indices(const Call& call, std::size_t i, std::int64_t bound, std::int64_t least) {
  const mx::array& indices = call.arg(i);
  if (!mx::issubdtype(indices.dtype(), mx::integer)) refuse("indices that are no integers");
  if (indices.size() == 0) return;
  const auto known = call.frame.host_ints(call.instruction.args[i]);
  for (const std::int64_t index : known) check_range(index, least, bound);
  if (!known.empty()) return;
  // Computed by the graph, which decoders hardly ever do: worth a wait for their values.
  check_range(mx::astype(mx::min(indices), mx::int64).item<std::int64_t>(), least, bound);
  check_range(mx::astype(mx::max(indices), mx::int64).item<std::int64_t>(), least, bound);
}

mx::array within(const mx::array& indices, int bound) {
  if (!mx::issubdtype(indices.dtype(), mx::integer)) refuse("indices that are no integers");
  return mx::clip(mx::astype(indices, mx::int32), mx::array(0), mx::array(bound - 1));
}

mx::array in_float32(const mx::array& x, mx::array (*f)(const mx::array&)) {
  return mx::astype(f(mx::astype(x, mx::float32)), x.dtype());
}

}  // namespace agentkv::mlx
