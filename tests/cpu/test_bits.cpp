// A row's bits depend on its own tokens alone: not on chunking, batching, cells, threads or the kind of plan.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/isa.h"
#include "cpp/check.h"
#include "fixture.h"
#include "thread_pool.h"

using namespace agentkv;
using namespace agentkv::cpu;
using namespace agentkv::cpu::testing;

namespace {

constexpr int kLength = 1100;  // three segments
constexpr int kCells = 3000;
constexpr float kScale = 0.09f;

std::vector<Cell> range(Cell first, int n) {
  std::vector<Cell> cells(static_cast<std::size_t>(n));
  std::iota(cells.begin(), cells.end(), first);
  return cells;
}

std::vector<Cell> prefix(const std::vector<Cell>& cells, int n) { return {cells.begin(), cells.begin() + n}; }

void check_rows(const Tensor& got, int got_row, const Tensor& want, int want_row, const std::string& what) {
  for (int h = 0; h < got.heads; ++h) {
    if (std::memcmp(got.row(h, got_row), want.row(h, want_row), sizeof(float) * got.dim) == 0) continue;
    std::fprintf(stderr, "%s: row %d, head %d differs\n", what.c_str(), got_row, h);
    CHECK(false);
  }
}

struct Sweep {
  Filled filled;
  std::vector<Cell> straight = range(0, kLength);
  std::vector<Cell> scattered;  // cells that hold the same rows as `straight`, in an order without runs
  Pos window;
  std::string name;

  // Position p fed alone over the straight cells.
  Tensor alone(Pos p) { return filled.attend(PlanMaker().sequence(prefix(straight, p + 1), 1).done(), kScale, window); }

  void check_chunks() {
    for (const auto* cells : {&straight, &scattered}) {
      for (const int n : {1, 2, 3, 5, 8, 33, 65, 200}) {
        StepPlan plan = PlanMaker().sequence(*cells, n).done();
        const Tensor chunk = filled.attend(plan, kScale, window);
        for (int row = 0; row < n; row += n > 40 ? 13 : 1) {
          check_rows(chunk, row, alone(kLength - n + row), 0, name + ", a chunk of " + std::to_string(n));
        }
        if (cells != &straight) continue;
        plan.kind = StepPlan::Kind::SingleContiguous;
        const Tensor same = filled.attend(plan, kScale, window);
        CHECK(same.data == chunk.data);
      }
    }
  }

  // Rows of other sequences around one: copies of its trunk with other ends, and strangers.
  void check_batches() {
    const Tensor want = alone(kLength - 1);
    for (const int n : {2, 3, 8, 64}) {
      for (const auto* cells : {&straight, &scattered}) {
        PlanMaker maker;
        for (int b = 0; b < n; ++b) {
          if (b == n / 2) {
            maker.sequence(*cells, 1);
            continue;
          }
          std::vector<Cell> other = b % 5 == 4 ? range(700, 40 + b) : prefix(straight, 900 + b % 3 * 64);
          for (int i = 0; i <= b % 4; ++i) other.push_back(2300 + 64 * i + b);
          maker.sequence(other, 1 + b % 2);
        }
        const StepPlan plan = maker.done();
        int row = 0;
        while (plan.positions[row] != kLength - 1) ++row;
        check_rows(filled.attend(plan, kScale, window), row, want, 0, name + ", a batch of " + std::to_string(n));
      }
    }
  }

  // A chain of draft nodes gives what its tokens give once committed, whatever siblings it has.
  void check_trees() {
    for (const int depth : {1, 3, 70}) {
      const int committed = kLength - depth;
      std::vector<std::vector<Run>> tails;
      for (int i = 0; i < depth; ++i) {
        tails.push_back({{committed, committed, i + 1}});                                            // the chain
        if (i % 3 == 0) tails.push_back({{committed, committed, i}, {committed + i, 2200 + i, 1}});  // a sibling
        if (i % 3 == 0 && i == 0) tails.back().erase(tails.back().begin());
      }
      const StepPlan plan =
          PlanMaker().tree(prefix(straight, committed), tails).sequence(prefix(scattered, 77), 2).done();
      const Tensor got = filled.attend(plan, kScale, window);
      for (int row = 0, i = 0; i < depth; ++i) {
        check_rows(got, row, alone(committed + i), 0, name + ", a draft chain of " + std::to_string(depth));
        row += i % 3 == 0 ? 2 : 1;
      }
    }
  }
};

void sweep(const Shape& shape, Pos window, const ParallelFor& parallel_for) {
  const std::string name = std::string(isa()) + ", " + shape.dtype + ", group " + std::to_string(shape.group) +
                           ", head_dim " + std::to_string(shape.head_dim) + ", window " + std::to_string(window);
  Sweep s{Filled(shape, kCells, parallel_for), range(0, kLength), range(kLength, kLength), window, name};
  std::mt19937 random(3);
  std::shuffle(s.scattered.begin(), s.scattered.end(), random);
  s.filled.cache.move_cells(s.straight.data(), s.scattered.data(), kLength);
  for (Tensor* tensor : {&s.filled.k, &s.filled.v}) {
    for (int h = 0; h < tensor->heads; ++h) {
      for (int p = 0; p < kLength; ++p) {
        std::copy_n(tensor->row(h, s.straight[p]), tensor->dim, tensor->row(h, s.scattered[p]));
      }
    }
  }
  s.check_chunks();
  s.check_batches();
  s.check_trees();
}

// Levels with fused multiply-add agree with one another, too.
void check_levels(const std::vector<std::string_view>& isas, const Shape& shape) {
  Filled filled(shape, 600, nullptr);
  const auto outputs = [&](std::string_view isa) {
    set_isa(isa);
    std::vector<Tensor> all;
    for (const int n : {1, 70}) all.push_back(filled.attend(PlanMaker().sequence(range(0, 600), n).done(), kScale));
    return all;
  };
  const std::vector<Tensor> want = outputs(isas.front());
  for (const std::string_view isa : isas) {
    if (isa == "v2") continue;
    const std::vector<Tensor> got = outputs(isa);
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(got[i].data == want[i].data);
  }
}

}  // namespace

int main() {
  ThreadPool pool(2);
  const ParallelFor two = [&](std::size_t n, const auto& task) { pool.run(n, task); };
  const auto isas = available_isas();
  for (const std::string_view isa : isas) {
    set_isa(isa);
    const bool best = isa == isas.front();
    sweep({1, 2, 32, "fp16"}, 0, two);
    sweep({1, 2, 32, "int8"}, 0, two);
    sweep({1, 2, 48, "fp16", 32, true, 4, true, true, 500}, 0, two);
    sweep({1, 2, 32, "int8", 16, false, 4, true, true, 500}, 0, two);
    if (!best) continue;
    sweep({1, 1, 80, "int8"}, 0, nullptr);
    sweep({1, 4, 64, "int4"}, 0, two);
    sweep({1, 2, 48, "int8/int4"}, 0, two);
    sweep({1, 1, 32, "fp32"}, 0, nullptr);
    sweep({1, 4, 40, "bf16"}, 0, two);
    sweep({1, 2, 32, "fp16"}, 300, nullptr);
    // One thread or two: the same bits.
    for (const char* dtype : {"fp16", "int8", "int8/int4"}) {
      Filled one({2, 2, 64, dtype}, 1500, nullptr), many({2, 2, 64, dtype}, 1500, two);
      for (const int n : {1, 70}) {
        const StepPlan plan = PlanMaker().sequence(range(0, 1500), n).done();
        CHECK(one.attend(plan, kScale).data == many.attend(plan, kScale).data);
      }
    }
  }
  for (const char* dtype : {"fp16", "int8", "int8/int4", "int4"}) {
    check_levels(isas, {2, 2, 80, dtype});
    check_levels(isas, {2, 2, 80, dtype, 48, false, 4, true, true});
  }
  return 0;
}
