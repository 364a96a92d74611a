// Products with weights, dense, packed or of several experts, and tables of rows.
#include <mlx/ops.h>

#include "mlx/graph_ops.h"

namespace agentkv::mlx {
namespace {

mx::array linear(const Call& call) {
  const mx::array &x = call.arg(0), &weight = call.arg(1);
  const auto bias = call.optional(2);
  check_floats(x);
  if (weight.ndim() != 2 || weight.shape(1) != x.shape(-1) || weight.dtype() != x.dtype()) {
    refuse("a weight that does not fit its rows");
  }
  check_vector(bias, weight.shape(0), "bias");
  const mx::array transposed = mx::transpose(weight);
  return bias ? mx::addmm(*bias, x, transposed) : mx::matmul(x, transposed);
}

void check_affine(const Instruction& instruction, const GraphBlob&) {
  const std::int64_t group = instruction.ints[0], bits = instruction.ints[1];
  if (group != 32 && group != 64 && group != 128) refuse("groups of ", group);
  if (bits != 4 && bits != 5 && bits != 8) refuse(bits, " bits");
}

// Weights of 4, 5 or 8 bits: packed [..., I * bits / 32] uint32, scales and biases [..., I / group].
struct Packed {
  const mx::array &codes, &scales, &biases;
  int group, bits;

  Packed(const Call& call, std::size_t first_arg, std::size_t rank)
      : codes(call.arg(first_arg)),
        scales(call.arg(first_arg + 1)),
        biases(call.arg(first_arg + 2)),
        group(narrow(call.integer(0))),
        bits(narrow(call.integer(1))) {
    const auto rows = [](const mx::array& x) { return mx::Shape(x.shape().begin(), x.shape().end() - 1); };
    if (codes.ndim() != rank || scales.ndim() != rank || codes.dtype() != mx::uint32 ||
        scales.shape() != biases.shape() || scales.dtype() != biases.dtype() || rows(scales) != rows(codes)) {
      refuse("packed weights, scales and biases that do not fit each other");
    }
    const std::int64_t groups = scales.shape(-1), words = codes.shape(-1);
    if (words * 32 != groups * group * bits) {
      refuse(words, " words of ", bits, "-bit codes for ", groups, " groups of ", group);
    }
  }

  int columns() const { return scales.shape(-1) * group; }
};

mx::array affine_linear(const Call& call) {
  const mx::array& x = call.arg(0);
  const Packed weight(call, 1, 2);
  const auto bias = call.optional(4);
  check_floats(x);
  if (weight.columns() != x.shape(-1)) refuse("a weight that does not fit its rows");
  check_vector(bias, weight.codes.shape(0), "bias");
  const mx::array product = mx::quantized_matmul(x, weight.codes, weight.scales, weight.biases, /*transpose=*/true,
                                                 weight.group, weight.bits);
  return bias ? mx::add(product, *bias) : product;
}

mx::array embedding(const Call& call) {
  const mx::array& table = call.arg(0);
  if (table.ndim() != 2) refuse("a table that is no matrix");
  check_indices(call, 1, table.shape(0));
  return mx::take(table, call.arg(1), 0);
}

mx::array affine_embedding(const Call& call) {
  const Packed table(call, 0, 2);
  const mx::array& indices = call.arg(3);
  check_indices(call, 3, table.codes.shape(0));
  return mx::dequantize(mx::take(table.codes, indices, 0), mx::take(table.scales, indices, 0),
                        mx::take(table.biases, indices, 0), table.group, table.bits);
}

mx::array matmul(const Call& call) {
  if (call.arg(0).dtype() != call.arg(1).dtype()) refuse("two dtypes");
  return mx::matmul(call.arg(0), call.arg(1));
}

// A layer of several experts over x, [T, I] or [T, K, I], of which each row meets the K that it chose.
struct Choice {
  mx::array rows;    // [T, 1 or K, 1, I]: a matrix of one row for each product
  mx::array chosen;  // [T, K]

  Choice(const Call& call, int experts, int inputs) : rows(call.arg(0)), chosen(call.arg(1)) {
    const mx::array x = call.arg(0);
    check_floats(x);
    if (chosen.ndim() != 2) refuse("a choice that is not [T, K]");
    const bool per_choice = x.ndim() == 3 && x.shape(1) == chosen.shape(1);
    if ((x.ndim() != 2 && !per_choice) || x.shape(0) != chosen.shape(0) || x.shape(-1) != inputs) {
      refuse("experts that do not fit their rows");
    }
    rows = mx::reshape(x, {x.shape(0), per_choice ? x.shape(1) : 1, 1, inputs});
    chosen = within(chosen, experts);
  }

  // [T, K, 1, O] -> [T, K, O] with the chosen rows of bias [E, O].
  mx::array finished(const mx::array& products, const std::optional<mx::array>& bias) const {
    const mx::array out = mx::squeeze(products, 2);
    return bias ? mx::add(out, mx::take(*bias, chosen, 0)) : out;
  }
};

void check_expert_bias(const std::optional<mx::array>& bias, const mx::array& weight) {
  if (bias && bias->shape() != mx::Shape{weight.shape(0), weight.shape(1)})
    refuse("biases that do not fit the experts");
}

// MLX's CPU device gathers matrices of float32 only.
bool gathers(mx::Dtype dtype) { return dtype == mx::float32 || mx::default_device() != mx::Device::cpu; }

mx::array expert_linear(const Call& call) {
  const mx::array& weight = call.arg(2);
  const auto bias = call.optional(3);
  if (weight.ndim() != 3 || weight.dtype() != call.arg(0).dtype()) refuse("experts that do not fit their rows");
  check_expert_bias(bias, weight);
  const Choice choice(call, weight.shape(0), weight.shape(2));
  const mx::Dtype dtype = weight.dtype(), within = gathers(dtype) ? dtype : mx::float32;
  const mx::array products = mx::gather_mm(mx::astype(choice.rows, within),
                                           mx::astype(mx::swapaxes(weight, 1, 2), within), std::nullopt, choice.chosen);
  return choice.finished(mx::astype(products, dtype), bias);
}

mx::array affine_expert_linear(const Call& call) {
  const Packed weight(call, 2, 3);
  const auto bias = call.optional(5);
  check_expert_bias(bias, weight.codes);
  const Choice choice(call, weight.codes.shape(0), weight.columns());
  const mx::array products = mx::gather_qmm(choice.rows, weight.codes, weight.scales, weight.biases, std::nullopt,
                                            choice.chosen, /*transpose=*/true, weight.group, weight.bits);
  return choice.finished(products, bias);
}

const Op kOps[] = {
    {1, "LINEAR", {2, 3}, {}, {}, linear},
    {2, "AFFINE_LINEAR", {4, 5}, 2, {}, affine_linear, check_affine},
    {3, "EMBEDDING", 2, {}, {}, embedding},
    {4, "AFFINE_EMBEDDING", 4, 2, {}, affine_embedding, check_affine},
    {9, "MATMUL", 2, {}, {}, matmul},
    {80, "EXPERT_LINEAR", {3, 4}, {}, {}, expert_linear},
    {81, "AFFINE_EXPERT_LINEAR", {5, 6}, 2, {}, affine_expert_linear, check_affine},
};

}  // namespace

std::span<const Op> product_ops() { return kOps; }

}  // namespace agentkv::mlx
