// Operations that move elements, change their dtype or make them.
#include <mlx/ops.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "mlx/graph_ops.h"

namespace agentkv::mlx {
namespace {

constexpr Count kList(0, 8);  // sizes or axes: as many as a value has dimensions

mx::Shape shape_of(const std::vector<std::int64_t>& sizes) {
  mx::Shape shape;
  for (const std::int64_t size : sizes) shape.push_back(narrow(size));
  return shape;
}

void check_dtype(const Instruction& instruction, const GraphBlob&) { dtype_of(instruction.ints[0]); }

mx::array cast(const Call& call) { return mx::astype(call.arg(0), dtype_of(call.integer(0))); }

void check_scalar(const Instruction& instruction, const GraphBlob&) {
  const auto dtype = dtype_of(instruction.ints[0]);
  const double value = instruction.floats[0];
  const bool fits = std::abs(value) < static_cast<double>(std::numeric_limits<std::int64_t>::max());
  if (mx::issubdtype(dtype, mx::integer) && !fits) refuse(value, " is no integer");
}

mx::array scalar(const Call& call) {
  const auto dtype = dtype_of(call.integer(0));
  const double value = call.instruction.floats[0];
  return mx::issubdtype(dtype, mx::integer) ? mx::array(static_cast<std::int64_t>(value), dtype)
                                            : mx::array(static_cast<float>(value), dtype);
}

void check_reshape(const Instruction& instruction, const GraphBlob&) {
  for (const std::int64_t size : instruction.ints) {
    if (size < -1 || size > std::numeric_limits<int>::max()) refuse("a size of ", size);
  }
  if (std::ranges::count(instruction.ints, -1) > 1) refuse("two sizes left open");
}

mx::array reshape(const Call& call) { return mx::reshape(call.arg(0), shape_of(call.instruction.ints)); }

mx::array transpose(const Call& call) {
  const mx::array& x = call.arg(0);
  std::vector<int> axes;
  for (const std::int64_t axis : call.instruction.ints) {
    axes.push_back(axis_of(x, axis));
    if (std::ranges::count(axes, axes.back()) > 1) refuse("dimension ", axis, " twice");
  }
  if (axes.size() != x.ndim()) refuse(axes.size(), " dimensions in another order");
  return mx::transpose(x, axes);
}

void check_slice(const Instruction& instruction, const GraphBlob&) {
  if (instruction.ints[3] < 1 || instruction.ints[3] > std::numeric_limits<int>::max()) {
    refuse("a step of ", instruction.ints[3]);
  }
}

// MLX would clamp bounds that the value does not have.
mx::array slice(const Call& call) {
  const mx::array& x = call.arg(0);
  const int axis = axis_of(x, call.integer(0));
  const std::int64_t size = x.shape(axis);
  const auto from_front = [&](std::int64_t at) { return at < 0 ? at + size : at; };
  const std::int64_t start = from_front(call.integer(1));
  const std::int64_t end =
      call.integer(2) == std::numeric_limits<std::int64_t>::max() ? size : from_front(call.integer(2));
  if (start < 0 || start > end || end > size) {
    refuse("from ", call.integer(1), " to ", call.integer(2), " of ", size, " elements");
  }
  mx::Shape starts(x.ndim(), 0), steps(x.ndim(), 1), ends = x.shape();
  starts[axis] = static_cast<int>(start);
  ends[axis] = static_cast<int>(end);
  steps[axis] = narrow(call.integer(3));
  return mx::slice(x, starts, ends, steps);
}

mx::array concatenate(const Call& call) {
  std::vector<mx::array> parts;
  for (std::size_t i = 0; i < call.instruction.args.size(); ++i) {
    if (!call.instruction.has(i)) refuse("part ", i, " is missing");
    parts.push_back(call.arg(i));
  }
  return mx::concatenate(std::move(parts), axis_of(call.arg(0), call.integer(0)));
}

mx::array broadcast(const Call& call) {
  const mx::array& x = call.arg(0);
  mx::Shape shape = shape_of(call.instruction.ints);
  const std::size_t added = shape.size() - std::min(shape.size(), x.ndim());
  if (shape.size() < x.ndim()) refuse("fewer dimensions than before");
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == -1 && d >= added) shape[d] = x.shape()[d - added];
    if (shape[d] < 0) refuse("a size of ", shape[d]);
  }
  return mx::broadcast_to(x, shape);
}

mx::array take(const Call& call) {
  const int axis = axis_of(call.arg(0), call.integer(0));
  const int size = call.arg(0).shape(axis);
  check_indices(call, 1, size, -size);  // as torch has it, negative ones count from the end
  return mx::take(call.arg(0), call.arg(1), axis);
}

const Op kOps[] = {
    {11, "CAST", 1, 1, {}, cast, check_dtype},
    {12, "SCALAR", {}, 1, 1, scalar, check_scalar},
    {13, "RESHAPE", 1, kList, {}, reshape, check_reshape},
    {14, "TRANSPOSE", 1, kList, {}, transpose},
    {15, "SLICE", 1, 4, {}, slice, check_slice},
    {16, "CONCAT", {1, Count::kAny}, 1, {}, concatenate},
    {17, "BROADCAST", 1, kList, {}, broadcast},
    {18, "TAKE", 2, 1, {}, take},
};

}  // namespace

std::span<const Op> shape_ops() { return kOps; }

}  // namespace agentkv::mlx
