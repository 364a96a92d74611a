// Norms, rotation and attention.
#include <mlx/fast.h>
#include <mlx/ops.h>

#include "mlx/graph_ops.h"
#include "mlx/kv_cache.h"

namespace agentkv::mlx {
namespace {

mx::array rms_norm(const Call& call) {
  const auto weight = call.optional(1);
  check_floats(call.arg(0));
  check_vector(weight, call.arg(0).shape(-1), "weight");
  return mx::fast::rms_norm(call.arg(0), weight, call.number(0));
}

mx::array layer_norm(const Call& call) {
  const auto weight = call.optional(1), bias = call.optional(2);
  check_floats(call.arg(0));
  check_vector(weight, call.arg(0).shape(-1), "weight");
  check_vector(bias, call.arg(0).shape(-1), "bias");
  return mx::fast::layer_norm(call.arg(0), weight, bias, call.number(0));
}

mx::array rope(const Call& call) {
  const mx::array &x = call.arg(0), &position = call.arg(1), &inv_freq = call.arg(2);
  if (x.ndim() != 4 || x.shape(0) != 1) refuse("heads that are not [1, H, T, D]");
  if (position.ndim() != 1 || position.shape(0) != x.shape(2)) refuse("positions that are not one per row");
  if (inv_freq.ndim() != 1 || inv_freq.shape(0) < 1 || inv_freq.shape(0) > x.shape(3) / 2) {
    refuse("more frequencies than pairs of dimensions");
  }
  const int turned = 2 * inv_freq.shape(0);
  const auto& offset = call.derived(1, [](const mx::array& p) { return mx::astype(p, mx::int32); });
  const auto& wavelength = call.derived(2, [](const mx::array& f) { return mx::reciprocal(f); });
  // MLX takes one offset per batch entry: the rows become the batch, so that each has a position of its own.
  const mx::array rows = mx::transpose(x, {2, 1, 0, 3});
  const mx::array out = mx::transpose(
      mx::fast::rope(rows, turned, call.integer(0) != 0, std::nullopt, 1.0f, offset, wavelength), {2, 1, 0, 3});
  const float scaling = call.number(0);
  if (scaling == 1.0f) return out;
  return mx::multiply(
      out,
      mx::concatenate({mx::full({turned}, scaling, x.dtype()), mx::full({x.shape(3) - turned}, 1.0f, x.dtype())}, 0));
}

void check_attention(const Instruction& instruction, const GraphBlob& blob) {
  check_position(instruction.args[3], blob);
  for (const std::size_t i : {0u, 1u, 3u}) {
    if (narrow(instruction.integer_or_0(i)) < 0) refuse("a negative layer, window or chunk");
  }
  dtype_of(instruction.ints[2]);
}

mx::array update_and_attend(const Call& call) {
  KvCache& cache = call.frame.cache;
  const int layer = narrow(call.integer(0));
  const auto position = call.frame.host_ints(call.instruction.args[3]);
  const bool writes = call.instruction.integer_or_0(4) == 0;
  const auto spec =
      writes ? cache.update_and_fetch(layer, position, call.arg(1), call.arg(2)) : cache.fetch(layer, position);
  const bool capped = call.instruction.floats.size() > 1;
  const Scoring scoring{call.number(0), capped ? call.number(1) : 0.0f, call.optional(4), call.optional(5)};
  const Sight sight{.window = narrow(call.integer(1)), .chunk = narrow(call.instruction.integer_or_0(3))};
  return mx::astype(cache.attend(spec, call.arg(0), scoring, sight), dtype_of(call.integer(2)));
}

mx::array softmax(const Call& call) {
  return mx::softmax(call.arg(0), axis_of(call.arg(0), call.integer(0)), /*precise=*/true);
}

const Op kOps[] = {
    {5, "RMS_NORM", {1, 2}, {}, 1, rms_norm},
    {6, "LAYER_NORM", {1, 3}, {}, 1, layer_norm},
    {7, "ROPE", 3, 1, 1, rope},
    {8, "UPDATE_AND_ATTEND", {4, 6}, {3, 5}, {1, 2}, update_and_attend, check_attention},
    {10, "SOFTMAX", 1, 1, {}, softmax},
};

}  // namespace

std::span<const Op> layer_ops() { return kOps; }

}  // namespace agentkv::mlx
