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

mx::array linear_attention(const Call& call) {
  const auto position = call.frame.host_ints(call.instruction.args[4]);
  const LinearInputs inputs{call.arg(0),      call.arg(1),      call.arg(2),         call.arg(3),
                            call.optional(5), call.optional(6), call.integer(1) != 0};
  return call.frame.cache.attend_linear(narrow(call.integer(0)), position, inputs);
}

mx::array selective_scan(const Call& call) {
  const auto position = call.frame.host_ints(call.instruction.args[5]);
  const ScanInputs inputs{call.arg(0), call.arg(1), call.arg(2), call.arg(3), call.arg(4)};
  return call.frame.cache.scan(narrow(call.integer(0)), position, inputs);
}

const Op kOps[] = {
    {90, "SHORT_CONV", {3, 4}, 1, {}, short_conv, check_mixer<2>},
    {91, "LINEAR_ATTENTION", {5, 7}, 2, {}, linear_attention, check_mixer<4>},
    {92, "SELECTIVE_SCAN", {6}, 1, {}, selective_scan, check_mixer<5>},
};

}  // namespace

std::span<const Op> mixer_ops() { return kOps; }

}  // namespace agentkv::mlx
