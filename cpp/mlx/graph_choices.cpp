// Which elements of a row are taken, as routers of experts choose them.
#include <mlx/ops.h>

#include "mlx/graph_ops.h"

namespace agentkv::mlx {
namespace {

void check_top_k(const Instruction& instruction, const GraphBlob&) {
  if (instruction.ints[1] < 1) refuse("the ", instruction.ints[1], " largest");
}

mx::array top_k(const Call& call) {
  const mx::array& x = call.arg(0);
  const int axis = axis_of(x, call.integer(0));
  if (call.integer(1) > x.shape(axis)) refuse(call.integer(1), " of ", x.shape(axis), " elements");
  const mx::array order = mx::argsort(call.integer(2) != 0 ? mx::negative(x) : x, axis);
  mx::Shape end = order.shape();
  end[axis] = static_cast<int>(call.integer(1));
  return mx::astype(mx::slice(order, mx::Shape(x.ndim(), 0), end), mx::int64);
}

int axis_of_along(const Call& call) {
  const mx::array &x = call.arg(0), &indices = call.arg(1);
  const int axis = axis_of(x, call.integer(0));
  mx::Shape expected = x.shape();
  if (indices.ndim() == x.ndim()) expected[axis] = indices.shape(axis);
  if (indices.shape() != expected) refuse("indices that do not fit its rows");
  return axis;
}

mx::array take_along(const Call& call) {
  const int axis = axis_of_along(call);
  return mx::take_along_axis(call.arg(0), within(call.arg(1), call.arg(0).shape(axis)), axis);
}

mx::array put_along(const Call& call) {
  const mx::array &x = call.arg(0), &indices = call.arg(1), &values = call.arg(2);
  const int axis = axis_of_along(call);
  if (values.dtype() != x.dtype()) refuse("values of another dtype");
  return mx::put_along_axis(x, within(indices, x.shape(axis)), mx::broadcast_to(values, indices.shape()), axis);
}

const Op kOps[] = {
    {82, "TOP_K", 1, 3, {}, top_k, check_top_k},
    {83, "TAKE_ALONG", 2, 1, {}, take_along},
    {84, "PUT_ALONG", 3, 1, {}, put_along},
};

}  // namespace

std::span<const Op> choice_ops() { return kOps; }

}  // namespace agentkv::mlx
