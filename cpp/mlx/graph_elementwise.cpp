// Operations on single elements, and reductions over dimensions.
#include <mlx/ops.h>

#include <numbers>
#include <vector>

#include "mlx/graph_ops.h"

namespace agentkv::mlx {
namespace {

using UnaryOp = mx::array (*)(const mx::array&, mx::StreamOrDevice);
using BinaryOp = mx::array (*)(const mx::array&, const mx::array&, mx::StreamOrDevice);
using Reduction = mx::array (*)(const mx::array&, const std::vector<int>&, bool, mx::StreamOrDevice);

template <UnaryOp kOp>
mx::array unary(const Call& call) {
  return kOp(call.arg(0), {});
}

template <BinaryOp kOp>
mx::array binary(const Call& call) {
  return kOp(call.arg(0), call.arg(1), {});
}

std::vector<int> axes_of(const Call& call) {
  std::vector<int> axes;
  for (std::size_t i = 1; i < call.instruction.ints.size(); ++i) axes.push_back(axis_of(call.arg(0), call.integer(i)));
  return axes;
}

template <Reduction kOp>
mx::array reduce(const Call& call) {
  return kOp(call.arg(0), axes_of(call), call.integer(0) != 0, {});
}

// Sums in half precision would be rounded at every step.
template <Reduction kOp>
mx::array accumulate(const Call& call) {
  const mx::array& x = call.arg(0);
  if (x.dtype() != mx::float16 && x.dtype() != mx::bfloat16) return reduce<kOp>(call);
  return mx::astype(kOp(mx::astype(x, mx::float32), axes_of(call), call.integer(0) != 0, {}), x.dtype());
}

mx::array silu(const Call& call) { return mx::multiply(call.arg(0), mx::sigmoid(call.arg(0))); }

mx::array relu(const Call& call) { return mx::maximum(call.arg(0), mx::array(0, call.arg(0).dtype())); }

mx::array gelu(const Call& call) {
  return in_float32(call.arg(0), [](const mx::array& x) {
    const auto half_root = mx::array(static_cast<float>(std::numbers::sqrt2 / 2));
    return 0.5f * x * (1.0f + mx::erf(x * half_root));
  });
}

mx::array gelu_tanh(const Call& call) {
  return in_float32(call.arg(0), [](const mx::array& x) {
    const auto scale = mx::array(static_cast<float>(std::numbers::sqrt2 * std::numbers::inv_sqrtpi));
    return 0.5f * x * (1.0f + mx::tanh(scale * (x + 0.044715f * x * x * x)));
  });
}

mx::array where(const Call& call) { return mx::where(call.arg(0), call.arg(1), call.arg(2)); }

constexpr Count kAxes(2, Count::kAny);

const Op kOps[] = {
    {20, "NEG", 1, {}, {}, unary<mx::negative>},
    {21, "ABS", 1, {}, {}, unary<mx::abs>},
    {22, "EXP", 1, {}, {}, unary<mx::exp>},
    {23, "LOG", 1, {}, {}, unary<mx::log>},
    {24, "SQRT", 1, {}, {}, unary<mx::sqrt>},
    {25, "RSQRT", 1, {}, {}, unary<mx::rsqrt>},
    {26, "SIN", 1, {}, {}, unary<mx::sin>},
    {27, "COS", 1, {}, {}, unary<mx::cos>},
    {28, "TANH", 1, {}, {}, unary<mx::tanh>},
    {29, "SIGMOID", 1, {}, {}, unary<mx::sigmoid>},
    {30, "RELU", 1, {}, {}, relu},
    {31, "SILU", 1, {}, {}, silu},
    {32, "GELU", 1, {}, {}, gelu},
    {33, "GELU_TANH", 1, {}, {}, gelu_tanh},
    {34, "RECIPROCAL", 1, {}, {}, unary<mx::reciprocal>},
    {35, "ERF", 1, {}, {}, unary<mx::erf>},
    {36, "LOGICAL_NOT", 1, {}, {}, unary<mx::logical_not>},
    {37, "FLOOR", 1, {}, {}, unary<mx::floor>},
    {40, "ADD", 2, {}, {}, binary<mx::add>},
    {41, "SUB", 2, {}, {}, binary<mx::subtract>},
    {42, "MUL", 2, {}, {}, binary<mx::multiply>},
    {43, "DIV", 2, {}, {}, binary<mx::divide>},
    {44, "POW", 2, {}, {}, binary<mx::power>},
    {45, "MAXIMUM", 2, {}, {}, binary<mx::maximum>},
    {46, "MINIMUM", 2, {}, {}, binary<mx::minimum>},
    {47, "EQ", 2, {}, {}, binary<mx::equal>},
    {48, "NE", 2, {}, {}, binary<mx::not_equal>},
    {49, "LT", 2, {}, {}, binary<mx::less>},
    {50, "LE", 2, {}, {}, binary<mx::less_equal>},
    {51, "GT", 2, {}, {}, binary<mx::greater>},
    {52, "GE", 2, {}, {}, binary<mx::greater_equal>},
    {60, "WHERE", 3, {}, {}, where},
    {70, "MEAN", 1, kAxes, {}, accumulate<mx::mean>},
    {71, "SUM", 1, kAxes, {}, accumulate<mx::sum>},
    {72, "MAX", 1, kAxes, {}, reduce<mx::max>},
    {73, "MIN", 1, kAxes, {}, reduce<mx::min>},
};

}  // namespace

std::span<const Op> elementwise_ops() { return kOps; }

}  // namespace agentkv::mlx
