// Blobs that parse, and every way in which one may not: each is a ProgramError before anything could run.
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "core/errors.h"
#include "mlx/graph_ops.h"
#include "mlx/graph_rig.h"

namespace {

using agentkv::ProgramError;
using namespace agentkv::testing;
using agentkv::mlx::GraphBlob;
using agentkv::mlx::parse_graph;

GraphBlob parse(const Bytes& bytes) { return parse_graph(bytes.data(), bytes.size()); }

// x [T, 32] and positions in; a norm, a linear without its bias, and attention over 2 heads.
struct Example {
  std::uint32_t opcode = 5, dtype = kF32;
  std::int32_t weight = 2, position = 1, out = 8;
  Sizes norm_ints, attend_ints = {0, 0, 0}, weight_sizes = {32};
  std::vector<double> norm_floats = {1e-6};

  GraphWriter writer() const {
    GraphWriter graph;
    const auto x = graph.input(dtype, {-1, 32});
    graph.input(kI64, {-1});
    graph.constant("norm.weight", kF32, weight_sizes);
    const auto linear = graph.constant("linear.weight", kF32, {32, 32});
    const auto norm = graph.op(opcode, {x, weight}, norm_ints, norm_floats);
    const auto rows = graph.op(1, {norm, linear, -1});
    const auto heads = graph.op(14, {graph.op(13, {rows}, {1, -1, 2, 16})}, {0, 2, 1, 3});
    graph.op(8, {heads, heads, heads, position}, attend_ints, {0.25});
    return graph.output(out, kF32, {1, 2, -1, 16});
  }
};

void refused(const Bytes& bytes, const std::string& why) {
  CHECK_THROWS(parse(bytes), ProgramError, "MLX delegate", why);
}

void refused(const std::function<void(Example&)>& change, const std::string& why) {
  Example example;
  change(example);
  refused(example.writer().blob(), why);
}

void a_blob_parses() {
  const GraphBlob blob = parse(Example{}.writer().blob());
  CHECK_EQ(blob.inputs.size(), 2u);
  CHECK(blob.inputs[0].sizes == (Sizes{-1, 32}));
  CHECK_EQ(blob.constants.at(1).key, "linear.weight");
  CHECK_EQ(blob.instructions.size(), 5u);
  CHECK_EQ(std::string(blob.instructions[0].op->name), "RMS_NORM");
  CHECK_EQ(blob.instructions[0].floats.at(0), 1e-6);
  CHECK(!blob.instructions[1].has(2));
  CHECK_EQ(blob.outputs.at(0).value, 8);
}

void every_cut_and_every_flipped_bit_is_refused() {
  const Bytes whole = Example{}.writer().blob();
  for (std::size_t n = 0; n < whole.size(); ++n) {
    refused(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n)), "");
  }
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes damaged = whole;
      damaged[i] ^= static_cast<std::uint8_t>(1 << bit);
      refused(damaged, "");
    }
  }
}

void other_versions_name_both() {
  refused(with_header(Example{}.writer().payload(), 2), "blob version 2, this build reads version 1");
}

void what_does_not_fit_together_is_refused() {
  refused([](Example& e) { e.opcode = 19; }, "instruction 0: unknown opcode 19");
  refused([](Example& e) { e.opcode = 0xFFFFFFFF; }, "unknown opcode");
  refused([](Example& e) { e.dtype = 8; }, "an unknown dtype 8");
  refused([](Example& e) { e.weight = 4; }, "instruction 0 (RMS_NORM): argument 1 is value 4");
  refused([](Example& e) { e.weight = -2; }, "argument 1 is value -2");
  refused([](Example& e) { e.opcode = 6, e.weight = 1 << 30; }, "is value 1073741824");
  refused([](Example& e) { e.norm_ints = {1}; }, "1 integers");
  refused([](Example& e) { e.norm_floats = {}; }, "0 numbers");
  refused([](Example& e) { e.out = 9; }, "output 0 is value 9");
  refused([](Example& e) { e.out = -1; }, "output 0 is value -1");
  refused([](Example& e) { e.weight_sizes = {-2}; }, "a size of -2");
  refused([](Example& e) { e.weight_sizes = Sizes(9, 1); }, "a value of 9 dimensions");
  refused([](Example& e) { e.position = 0; }, "(UPDATE_AND_ATTEND): positions are no int64 input");
  refused([](Example& e) { e.position = 5; }, "positions are no int64 input");
  refused([](Example& e) { e.attend_ints = {-1, 0, 0}; }, "a negative layer, window or chunk");
  refused([](Example& e) { e.attend_ints = {0, 0, 9}; }, "an unknown dtype 9");
  Bytes longer = Example{}.writer().payload();
  longer.push_back(0);
  refused(with_header(longer), "goes on after its end");
}

void literals_that_no_values_could_satisfy_are_refused() {
  const auto refused_op = [](std::uint32_t opcode, std::vector<std::int32_t> args, const Sizes& ints,
                             std::vector<double> floats, const std::string& why) {
    GraphWriter graph;
    for (int i = 0; i < 5; ++i) graph.input(kF32, {4});
    graph.op(opcode, args, ints, floats);
    refused(graph.blob(), why);
  };
  refused_op(2, {0, 1, 2, 3}, {64, 3}, {}, "3 bits");
  refused_op(4, {0, 1, 2, 3}, {48, 4}, {}, "groups of 48");
  refused_op(11, {0}, {-1}, {}, "an unknown dtype -1");
  refused_op(12, {}, {kI64}, {1e19}, "is no integer");
  refused_op(12, {}, {kI32}, {std::nan("")}, "is no integer");
  refused_op(13, {0}, {-1, -1}, {}, "two sizes left open");
  refused_op(13, {0}, {1ll << 40}, {}, "a size of 1099511627776");
  refused_op(15, {0}, {0, 0, 4, 0}, {}, "a step of 0");
  refused_op(16, {}, {0}, {}, "0 arguments");
  refused_op(40, {0, -1}, {}, {}, "argument 1 is value -1");
  refused_op(70, {0}, {1}, {}, "1 integers");
}

// Damage that the checksum does not show: what still parses must run, or be refused, and never break the process.
void what_parses_runs_or_throws() {
  std::mt19937 random(7);
  const Bytes payload = Example{}.writer().payload();
  const Floats x = noise(96);
  const Ints position = {0, 1, 2};
  int ran = 0;
  for (int round = 0; round < 20000; ++round) {
    Bytes damaged = payload;
    for (int n = 1 + static_cast<int>(random() % 3); n > 0; --n) {
      damaged[random() % damaged.size()] = static_cast<std::uint8_t>(random() % 4 == 0 ? random() : random() % 12);
    }
    const Bytes blob = with_header(damaged);
    agentkv::mlx::on_owner([&] {
      SmallCache cache;
      cache.cells->begin_step(std::vector<agentkv::SeqId>(3, 0));
      try {
        const agentkv::mlx::Graph graph(
            blob.data(), blob.size(),
            [](const std::string&, mx::Dtype dtype, const mx::Shape& shape) { return mx::zeros(shape, dtype); });
        graph.run({{rows(x, {3, 32}), rows(position)}}, *cache.layer);
        ++ran;
      } catch (const agentkv::Error&) {
      }
    });
  }
  CHECK(ran > 100);
}

}  // namespace

int main() {
  a_blob_parses();
  every_cut_and_every_flipped_bit_is_refused();
  other_versions_name_both();
  what_does_not_fit_together_is_refused();
  literals_that_no_values_could_satisfy_are_refused();
  what_parses_runs_or_throws();
  return 0;
}
