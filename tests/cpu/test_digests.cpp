// What kernels compute from fixed numbers is the same on every machine, to the bit: digests of it, on each instruction
// set, against tests/data/digests/cpu.txt. After a change of the arithmetic, `test_digests --print` writes that anew.
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "blocks/random_blocks.h"
#include "convolution_model.h"
#include "cpp/digest.h"
#include "cpp/numbers.h"
#include "cpu/blocks/block_experts.h"
#include "cpu/blocks/block_linear.h"
#include "cpu/blocks/quantize.h"
#include "cpu/linear/experts.h"
#include "cpu/linear/linear.h"
#include "cpu/row_ops.h"
#include "fixture.h"
#include "linear/routing.h"
#include "linear/weights.h"
#include "linear_attention_model.h"
#include "selective_scan_model.h"

using namespace agentkv;
using namespace agentkv::cpu;
using namespace agentkv::cpu::testing;
using agentkv::testing::Digest;
using agentkv::testing::DigestRow;

namespace {

std::size_t size(int n) { return static_cast<std::size_t>(n); }

using Rows = std::vector<DigestRow>;

// One row and many of them, over cells in order and in none.
void attend_into(Digest& digest, Filled& filled, Pos window, Pos sinks) {
  constexpr int kLength = 300;
  std::vector<Cell> cells(kLength), others(kLength);
  for (int i = 0; i < kLength; ++i) cells[size(i)] = i, others[size(i)] = i * 7 % kLength;
  for (const int n : {1, 5, 70}) {
    for (const auto* each : {&cells, &others}) {
      const StepPlan plan = PlanMaker().sequence(*each, n).done();
      digest.add(filled.attend(plan, 0.125f, window, sinks).data);
    }
  }
}

void add_attention(Rows& rows) {
  const auto add = [&](const std::string& what, const Shape& shape, Pos window = 0, Pos sinks = 0) {
    rows.push_back({"attention, " + what, [=](Digest& digest) {
                      Filled filled(shape, 300, nullptr);
                      attend_into(digest, filled, window, sinks);
                    }});
  };
  for (const char* dtype : {"fp32", "fp16", "bf16", "int8", "int4", "int8/int4"}) {
    const std::string name = dtype;
    add(name, {1, 2, 64, dtype});
    add(name + ", 5 to a head of 80", {2, 5, 80, dtype});
    add(name + ", a head of 48, a window", {1, 2, 48, dtype}, 100, 4);
    add(name + ", capped scores, sinks, slopes", {1, 4, 32, dtype, 0, false, 20, true, true});
    if (!has_scales(parse_kv_dtype(name).keys)) add(name + ", latent", {1, 8, 96, dtype, 64, true});
  }
}

void add_linears(Rows& rows) {
  for (const LinearShape& shape : {LinearShape{70, 192, 4, 32}, LinearShape{47, 1088, 4, 64},
                                   LinearShape{64, 640, 4, 128}, LinearShape{70, 200, 8, 200}}) {
    const std::string name = std::to_string(shape.bits) + " bits, groups of " + std::to_string(shape.group);
    rows.push_back({"linear, " + name, [=](Digest& digest) {
                      const Weights weights(shape, 11);
                      AlignedBytes bytes = weights.packed();
                      const PackedLinear packed(shape, bytes.span());
                      const std::vector<float> bias = random_floats(size(shape.outputs), 3);
                      for (const int n : {1, 3, 40}) {
                        const std::vector<float> x = random_floats(size(n) * size(shape.inputs), 5);
                        std::vector<float> y(size(n) * size(shape.outputs));
                        QuantizedRows codes;
                        codes.assign(x.data(), n, shape.inputs, size(shape.inputs), nullptr);
                        linear(codes, packed, bias, y.data(), size(shape.outputs), nullptr);
                        digest.add(y);
                      }
                    }});
  }
  rows.push_back({"linear of experts, floats", [](Digest& digest) {
                    const LinearShape shape{33, 50, 32, 50};
                    const std::vector<float> weights = random_floats(33 * 50, 9);
                    AlignedBytes bytes(packed_linear_bytes(shape));
                    pack_floats(shape, weights, bytes.span());
                    const std::vector<PackedLinear> experts{PackedLinear(shape, bytes.span())};
                    const Routing routing(11, 1, 1, 1);
                    const std::vector<float> x = random_floats(11 * 50, 5);
                    digest.add(run_experts(routing, 50, 33, x, false, [&](const auto& from, const auto& to) {
                      expert_linear(from, routing.chosen, experts, {}, to, nullptr);
                    }));
                  }});
}

void multiply_blocks(Digest& digest, const BlockShape& shape) {
  AlignedBytes panels(block_panel_bytes(shape));
  pack_blocks(shape, random_rows(shape, 3), panels.span());
  digest.add(panels.span());
  const BlockWeight weight(shape, panels.span());
  std::vector<float> row(size(shape.inputs));
  weight.read_row(shape.outputs / 2, row);
  digest.add(row);
  for (const int n : {1, 4, 21}) {
    const std::vector<float> x = random_floats(size(n) * size(shape.inputs), 5);
    std::vector<float> y(size(n) * size(shape.outputs));
    block_linear(x.data(), size(shape.inputs), n, weight, {}, y.data(), size(shape.outputs), nullptr);
    digest.add(y);
  }
}

// Every type of blocks as a weight, and what numbers become where they are quantised to one.
void add_blocks(Rows& rows) {
  for (const BlockTypeInfo& info : block_types()) {
    rows.push_back({"blocks, " + std::string(info.name), [&info](Digest& digest) {
                      multiply_blocks(digest, {45, 3 * info.inputs + info.inputs, info.type});
                    }});
  }
  for (const BlockType type : {BlockType::Q4_0, BlockType::Q4_1, BlockType::Q5_0, BlockType::Q5_1, BlockType::Q8_0,
                               BlockType::Q4_K, BlockType::Q5_K, BlockType::Q6_K, BlockType::BF16}) {
    rows.push_back({"quantised to " + std::string(block_type_info(static_cast<int>(type)).name), [=](Digest& digest) {
                      const BlockShape shape{7, 512, type};
                      const std::vector<float> numbers = random_floats(7 * 512, 5);
                      std::vector<std::byte> made(7 * block_row_bytes(shape));
                      const QuantizationLoss loss =
                          quantize_blocks(shape, BlockType::F32, std::as_bytes(std::span(numbers)), {}, made, nullptr);
                      digest.add(made);
                      digest.add(std::vector<double>{loss.lost, loss.whole});
                    }});
  }
}

// A matrix of kTokens rows, as operations on rows take it.
struct Matrix {
  static constexpr std::int32_t kTokens = 19;
  std::int32_t dim;
  std::vector<float> data = random_floats(size(kTokens * dim), 7);

  HeadsView in() const { return {data.data(), 1, kTokens, dim, dim, dim}; }
  MutableHeadsView out() { return {data.data(), 1, kTokens, dim, dim, dim}; }
};

void add_row_ops(Rows& rows) {
  rows.push_back({"norm", [](Digest& digest) {
                    for (const std::int32_t dim : {8, 100, 129}) {
                      Matrix x{dim};
                      rms_norm(x.in(), random_floats(size(dim), 2), 1e-5f, x.out(), nullptr);
                      digest.add(x.data);
                    }
                  }});
  rows.push_back({"rope", [](Digest& digest) {
                    std::vector<std::int64_t> positions(Matrix::kTokens);
                    for (std::size_t t = 0; t < positions.size(); ++t)
                      positions[t] = static_cast<std::int64_t>(t * t * 91);
                    std::vector<float> inv_freq(20);
                    for (std::size_t i = 0; i < 20; ++i) inv_freq[i] = 1.0f / static_cast<float>(1 + i * i * i);
                    for (const bool interleaved : {false, true}) {
                      Matrix x{48}, table{40};
                      rope_table(positions, inv_freq, 1.25f, table.out(), nullptr);
                      rope(x.in(), table.in(), interleaved, x.out(), nullptr);
                      digest.add(table.data), digest.add(x.data);
                    }
                  }});
  for (const auto& [gate, name] : {std::pair{Gate::Silu, "silu"},
                                   {Gate::TanhGelu, "gelu"},
                                   {Gate::Sigmoid, "sigmoid"},
                                   {Gate::Softplus, "softplus"}}) {
    rows.push_back({"gate, " + std::string(name), [gate = gate](Digest& digest) {
                      Matrix x{77}, up{77};
                      for (float& value : x.data) value *= 9;
                      const HeadsView factor = up.in();
                      gate_rows(gate, x.in(), &factor, x.out(), nullptr);
                      digest.add(x.data);
                    }});
  }
  rows.push_back({"weighted sum", [](Digest& digest) {
                    const std::vector<float> src = random_floats(3 * 19 * 40, 1), weights = random_floats(19 * 3, 2);
                    std::vector<float> out(19 * 40);
                    weighted_sum({src.data(), 3, 19, 40, 40, 120}, {weights.data(), 1, 19, 3, 3, 3},
                                 {out.data(), 1, 19, 40, 40, 40}, nullptr);
                    digest.add(out);
                  }});
}

void add_states(Rows& rows) {
  namespace la = linear_attention;
  for (const auto& [kind, name] :
       {std::pair{la::kMamba2, "mamba 2"}, {la::kDelta, "delta rule"}, {la::kKimi, "kimi"}}) {
    rows.push_back({"linear attention, " + std::string(name), [kind = kind](Digest& digest) {
                      const la::Inputs x(150, 1, kind);
                      la::Model model(kind);
                      for (const auto& [first, n] : {std::pair{0, 90}, {90, 1}, {91, 59}}) {
                        digest.add(model.feed(x, first, n));
                      }
                    }});
  }
  rows.push_back({"selective scan", [](Digest& digest) {
                    const scan::Inputs x(150, 1);
                    scan::Model model;
                    for (const auto& [first, n] : {std::pair{0, 90}, {90, 60}}) digest.add(model.feed(x, first, n));
                  }});
  rows.push_back({"convolution", [](Digest& digest) {
                    convolution::Model model;
                    digest.add(model.feed(convolution::random_floats(40 * convolution::kChannels, 3)));
                  }});
}

}  // namespace

int main(int argc, char** argv) {
  Rows rows;
  add_attention(rows);
  add_linears(rows);
  add_blocks(rows);
  add_row_ops(rows);
  add_states(rows);
  return agentkv::testing::check_digests(rows, AGENTKV_DIGESTS, "What tests/cpu/test_digests.cpp computes.", argc,
                                         argv);
}
