// Attention against the same sums in double precision, for every instruction set of this machine.
#include <algorithm>
#include <cstdio>
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

// `length` distinct cells below `cells`, in random order, with runs and, where `holes`, absent positions.
std::vector<Cell> scattered(int length, int cells, bool holes, std::mt19937& random) {
  std::vector<Cell> all(static_cast<std::size_t>(cells));
  for (int i = 0; i < cells; ++i) all[i] = i;
  for (int i = 0; i < cells; i += 7) std::swap(all[i], all[random() % all.size()]);
  all.resize(static_cast<std::size_t>(length));
  if (holes) {
    for (int p = 0; p + 3 < length; ++p) {
      if (random() % 5 == 0 || (p >= 100 && p < 240)) all[p] = -1;
    }
  }
  return all;
}

void check_close(Filled& filled, const StepPlan& plan, Pos window, Pos sinks, const char* what) {
  const float scale = 0.11f;
  // Over codes, weights are 16-bit integers; and the wider rows are, the larger are the scores that are rounded.
  const double rounding = has_scales(parse_kv_dtype(filled.shape.dtype).keys) ? 2e-4 : 4e-6;
  const double tolerance = filled.shape.head_dim > 256 ? 6 * rounding : rounding;
  const Tensor want = filled.reference(plan, scale, window, sinks);
  for (const std::string_view isa : available_isas()) {
    set_isa(isa);
    const double difference = largest_difference(filled.attend(plan, scale, window, sinks), want);
    if (!(difference < tolerance)) {
      std::fprintf(stderr, "%s, %s: dtype %s, group %d, head_dim %d, window %d: off by %g\n", isa.data(), what,
                   filled.shape.dtype, filled.shape.group, filled.shape.head_dim, window, difference);
    }
    CHECK(difference < tolerance);
  }
}

void check_shape(const Shape& shape, const ParallelFor& parallel_for, unsigned seed) {
  constexpr int cells = 720;
  std::mt19937 random(seed);
  Filled filled(shape, cells, parallel_for, seed);
  std::vector<Cell> straight(600);
  for (int i = 0; i < 600; ++i) straight[i] = i;
  for (const Pos window : {0, 150}) {
    check_close(filled, PlanMaker().sequence(straight, 1).done(), window, 0, "one row");
    check_close(filled, PlanMaker().sequence(straight, 40).done(), window, 0, "a chunk");
    check_close(filled, PlanMaker().sequence(scattered(590, cells, true, random), 3).done(), window, 0, "scattered");
    check_close(filled, PlanMaker().sequence(straight, 9).done(), window, 5, "sinks");
  }
  // Branches: a common trunk, private ends of different lengths.
  PlanMaker branches;
  for (int b = 0; b < 6; ++b) {
    std::vector<Cell> sequence(straight.begin(), straight.begin() + 500 + 3 * b);
    for (int i = 0; i < 1 + b; ++i) sequence.push_back(600 + 8 * i + b);
    branches.sequence(sequence, 1 + b % 2);
  }
  check_close(filled, branches.done(), 0, 0, "branches");
  // Draft nodes: two children of the root, one grandchild, beside a plain row of another sequence.
  const std::vector<Cell> committed(straight.begin(), straight.begin() + 510);
  const std::vector<std::vector<Run>> tails = {
      {{510, 650, 1}}, {{510, 655, 1}}, {{510, 650, 1}, {511, 670, 1}}, {{510, 650, 1}, {511, 670, 1}, {512, 651, 1}}};
  check_close(filled, PlanMaker().tree(committed, tails).sequence(scattered(100, cells, false, random), 1).done(), 0, 0,
              "draft tree");
}

}  // namespace

int main() {
  ThreadPool pool(2);
  const ParallelFor parallel_for = [&](std::size_t n, const auto& task) { pool.run(n, task); };
  unsigned seed = 10;
  for (const char* dtype : {"fp32", "fp16", "bf16", "int8", "int8/int4", "int4"}) {
    for (const int group : {1, 2, 4, 8}) check_shape({1, group, 64, dtype}, parallel_for, ++seed);
    for (const int dim : {8, 80, 128, 200}) check_shape({2, 1, dim, dtype}, parallel_for, ++seed);
  }
  for (const char* dtype : {"fp32", "fp16", "int8", "int8/int4", "int4"}) {
    const Shape capped{.n_kv_heads = 1, .group = 2, .head_dim = 40, .dtype = dtype, .cap = 3};
    const Shape with_sinks{.n_kv_heads = 2, .group = 2, .dtype = dtype, .sink_scores = true};
    const Shape sloped{.n_kv_heads = 2, .group = 3, .dtype = dtype, .slopes = true};
    const Shape chunked{.n_kv_heads = 1, .group = 4, .dtype = dtype, .chunk = 100};
    const Shape wide{.n_kv_heads = 1, .group = 2, .head_dim = 512, .dtype = dtype};
    const Shape uneven{.n_kv_heads = 2, .group = 1, .head_dim = 48, .dtype = dtype, .v_dim = 24};
    const Shape other{.n_kv_heads = 2, .group = 1, .head_dim = 24, .dtype = dtype, .v_dim = 72};
    for (const Shape& shape : {capped, with_sinks, sloped, chunked, wide, uneven, other}) {
      check_shape(shape, parallel_for, ++seed);
    }
  }
  for (const char* dtype : {"fp32", "fp16", "bf16"}) {
    check_shape({1, 8, 72, dtype, 40, true}, parallel_for, ++seed);
    check_shape({1, 2, 576, dtype, 512, true, 5, true}, parallel_for, ++seed);
  }
  CHECK_THROWS(set_isa("v9"), InvalidTensor, "v9", "not one of");
  return 0;
}
