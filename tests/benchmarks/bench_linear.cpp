// Linear layers of the shapes of Qwen3-0.6B, over as many matrices as it has layers, so that weights come from memory:
// bytes read a second at one row beside what the machine reads at all, few rows beside one, and many. Everything in
// turns. A pass is many calls; "best" adds up the best of each call over the rounds, which a busy machine disturbs
// little, and "median" is that of whole passes. Run by hand: bench_linear [rounds [block type...]], where weights are
// codes of 4 and of 8 bits unless types of blocks are named; AGENTKV_CPU_ISA picks the kernels.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "core/isa.h"
#include "cpu/blocks/block_linear.h"
#include "cpu/linear/linear.h"
#include "linear/weights.h"
#include "thread_pool.h"

using namespace agentkv;
using namespace agentkv::cpu;
using namespace agentkv::cpu::testing;

namespace {

constexpr int kLayers = 28;
constexpr int kManyRows = 512;
constexpr std::size_t kRead = (2 << 20) / sizeof(std::uint64_t);  // a call reads 2 MiB

// y of `rows` rows of x.
struct Layer {
  int outputs = 0, inputs = 0;
  std::size_t bytes = 0;
  virtual ~Layer() = default;
  virtual void run(const float* x, int rows, float* y, const ParallelFor& parallel_for) const = 0;
};

struct CodesLayer : Layer {
  AlignedBytes packed;
  PackedLinear weight;

  explicit CodesLayer(const Weights& weights) : packed(weights.packed()), weight(weights.shape, packed.span()) {
    bytes = packed.span().size();
  }
  void run(const float* x, int rows, float* y, const ParallelFor& parallel_for) const override {
    static QuantizedRows codes;
    codes.assign(x, rows, inputs, static_cast<std::size_t>(inputs), parallel_for);
    linear(codes, weight, {}, y, static_cast<std::size_t>(outputs), parallel_for);
  }
};

struct BlocksLayer : Layer {
  AlignedBytes packed;
  BlockWeight weight;

  BlocksLayer(const BlockShape& shape, std::span<const std::byte> rows)
      : packed(filled(shape, rows)), weight(shape, packed.span()) {
    bytes = packed.span().size();
  }
  static AlignedBytes filled(const BlockShape& shape, std::span<const std::byte> rows) {
    AlignedBytes out(block_panel_bytes(shape));
    pack_blocks(shape, rows, out.span());
    return out;
  }
  void run(const float* x, int rows, float* y, const ParallelFor& parallel_for) const override {
    block_linear(x, static_cast<std::size_t>(inputs), rows, weight, {}, y, static_cast<std::size_t>(outputs),
                 parallel_for);
  }
};

// Makes a layer's copies.
using MakeLayer = std::function<std::unique_ptr<Layer>()>;

MakeLayer codes_of(int outputs, int inputs, int bits) {
  const auto weights = std::make_shared<Weights>(LinearShape{outputs, inputs, bits, bits == 4 ? 32 : inputs}, 1);
  return [=] { return std::make_unique<CodesLayer>(*weights); };
}

MakeLayer blocks_of(int outputs, int inputs, const BlockTypeInfo& type) {
  const BlockShape shape{outputs, inputs, type.type};
  std::vector<std::byte> rows(static_cast<std::size_t>(outputs) * block_row_bytes(shape));
  // Bytes that are scales of an ordinary size wherever a type has them.
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::byte>((i * 2654435761u >> 7) & 0x37);
  return [=] { return std::make_unique<BlocksLayer>(shape, rows); };
}

struct Model {
  std::string name;
  std::vector<std::unique_ptr<Layer>> layers;  // one after another, as a forward has them
  std::size_t bytes = 0;
  double products = 0;  // of one row

  Model(std::string name, const std::function<MakeLayer(int outputs, int inputs)>& make) : name(std::move(name)) {
    constexpr int kShapes[][2] = {{2048, 1024}, {1024, 1024}, {1024, 1024}, {1024, 2048},
                                  {3072, 1024}, {3072, 1024}, {1024, 3072}};
    constexpr std::size_t kEach = std::size(kShapes);
    layers.resize(kLayers * kEach);
    for (std::size_t shape = 0; shape < kEach; ++shape) {
      const auto& [outputs, inputs] = kShapes[shape];
      const MakeLayer copy = make(outputs, inputs);
      for (std::size_t i = shape; i < layers.size(); i += kEach) {
        layers[i] = copy();
        layers[i]->outputs = outputs, layers[i]->inputs = inputs;
        bytes += layers[i]->bytes;
        products += double{1} * outputs * inputs;
      }
    }
  }
};

std::vector<std::unique_ptr<Model>> models_of(std::span<char*> types) {
  std::vector<std::unique_ptr<Model>> models;
  for (const int bits : {4, 8}) {
    if (!types.empty()) break;
    models.push_back(std::make_unique<Model>(std::to_string(bits) + " bits",
                                             [=](int outputs, int inputs) { return codes_of(outputs, inputs, bits); }));
  }
  for (const std::string_view name : types) {
    for (const BlockTypeInfo& type : block_types()) {
      if (type.name != name) continue;
      models.push_back(std::make_unique<Model>(
          std::string(name), [&](int outputs, int inputs) { return blocks_of(outputs, inputs, type); }));
    }
  }
  return models;
}

// A sum of 64 KiB pieces, drawn by threads as the tasks of a linear layer are.
std::uint64_t read_all(std::span<const std::uint64_t> memory, const ParallelFor& parallel_for) {
  constexpr std::size_t kPiece = (64 << 10) / sizeof(std::uint64_t);
  std::vector<std::uint64_t> sums(memory.size() / kPiece);
  const auto piece = [&](std::size_t i) {
    std::uint64_t lanes[32] = {};
    for (std::size_t at = i * kPiece; at < (i + 1) * kPiece; at += 32) {
      for (std::size_t j = 0; j < 32; j += 8) __builtin_prefetch(&memory[at + j] + 384, 0, 2);
      for (std::size_t j = 0; j < 32; ++j) lanes[j] ^= memory[at + j];
    }
    for (const std::uint64_t lane : lanes) sums[i] ^= lane;
  };
  parallel_for(sums.size(), piece);
  std::uint64_t all = 0;
  for (const std::uint64_t sum : sums) all ^= sum;
  return all;
}

struct Measured {
  std::string what;
  std::size_t calls;  // of a pass
  std::function<void(std::size_t)> run;
  double work;  // of a pass
  const char* unit;
  std::vector<double> best = {}, passes = {};  // seconds

  void measure() {
    best.resize(calls, 1e9);
    double pass = 0;
    for (std::size_t i = 0; i < calls; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      run(i);
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      best[i] = std::min(best[i], seconds);
      pass += seconds;
    }
    passes.push_back(pass);
  }
  void print() {
    std::sort(passes.begin(), passes.end());
    const double least = std::accumulate(best.begin(), best.end(), 0.0), median = passes[passes.size() / 2];
    std::printf("%-30s best %8.2f ms %8.1f %-5s  median %8.2f ms %8.1f %s\n", what.c_str(), least * 1e3, work / least,
                unit, median * 1e3, work / median, unit);
  }
};

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  ThreadPool pool(2);
  const ParallelFor one = [](std::size_t n, const auto& task) {
    for (std::size_t i = 0; i < n; ++i) task(i);
  };
  const ParallelFor two = [&](std::size_t n, const auto& task) { pool.run(n, task); };
  std::vector<float> x(std::size_t{kManyRows} * 3072), y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 2654435761u >> 7) % 2001) / 500 - 2;
  std::vector<std::uint64_t> memory(std::size_t{48} << 20, 1);  // 384 MiB
  volatile std::uint64_t sink = 0;

  std::vector<Measured> all;
  const double gigabytes = static_cast<double>(memory.size() * sizeof(std::uint64_t)) * 1e-9;
  for (const auto* threads : {&one, &two}) {
    const std::string on = threads == &one ? ", 1 thread" : ", 2 threads";
    all.push_back(
        {"reading memory" + on, memory.size() / kRead,
         [&, threads](std::size_t i) { sink = read_all(std::span(memory).subspan(i * kRead, kRead), *threads); },
         gigabytes, "GB/s"});
  }
  const auto models =
      models_of(std::span(argv, static_cast<std::size_t>(argc)).subspan(argc > 2 ? 2 : static_cast<std::size_t>(argc)));
  for (const auto& each : models) {
    const Model& model = *each;
    const auto add = [&](int rows, const ParallelFor& threads, const std::string& on) {
      const bool many = rows > 32;
      all.push_back({model.name + ", " + std::to_string(rows) + " rows, " + on, model.layers.size(),
                     [&, rows](std::size_t i) { model.layers[i]->run(x.data(), rows, y.data(), threads); },
                     many ? 2e-9 * model.products * rows : static_cast<double>(model.bytes) * 1e-9,
                     many ? "GOP/s" : "GB/s"});
    };
    for (const int rows : {1, 2, 4, 8, 16, 32}) add(rows, one, "1 thread");
    for (const int rows : {1, 4, 8, 16, 32}) add(rows, two, "2 threads");
    add(kManyRows, one, "1 thread");
    add(kManyRows, two, "2 threads");
  }
  std::printf("%s, %d rounds\n", std::string(isa()).c_str(), rounds);
  for (int round = 0; round < rounds; ++round) {
    for (Measured& measured : all) measured.measure();
  }
  for (Measured& measured : all) measured.print();
}
