// What mixes tokens otherwise than attention.
#include "mlx/graph_ops.h"
#include "mlx/kv_cache.h"

namespace agentkv::mlx {
namespace {

template <std::size_t kPosition>
void check_mixer(const Instruction& instruction, const GraphBlob& blob) {
  check_position(instruction.args[kPosition], blob);
  if (narrow(instruction.ints[0]) < 0) refuse("a negative layer");
}

mx::array short_conv(const Call& call) {
  const auto position = call.frame.host_ints(call.instruction.args[2]);
  return call.frame.cache.convolve(narrow(call.integer(0)), position, call.arg(0), {call.arg(1), call.optional(3)});
}

const Op kOps[] = {
    {90, "SHORT_CONV", {3, 4}, 1, {}, short_conv, check_mixer<2>},
};

}  // namespace

std::span<const Op> mixer_ops() { return kOps; }

}  // namespace agentkv::mlx
