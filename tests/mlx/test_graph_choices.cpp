// Elements of rows by their size and by their index.
#include <vector>

#include "core/errors.h"
#include "mlx/graph_rig.h"

namespace {

using agentkv::InvalidTensor;
using namespace agentkv::testing;

const Floats kRows = {3, 1, 2, 0, -4, 5, -6, 7};  // [2, 4]

Floats run(const Sizes& sizes,
           const std::function<std::int32_t(GraphWriter&, std::int32_t x, std::int32_t indices)>& op,
           const Ints& indices = {0}) {
  GraphWriter graph;
  const auto x = graph.input(kF32, {2, 4}), given = graph.input(kI64, {-1});
  const auto out = graph.op(11, {op(graph, x, given)}, {kF32});
  return Rig(graph.output(out, kF32, sizes)).run({rows(kRows, {2, 4}), rows(indices)});
}

void the_largest_and_the_smallest_of_a_row() {
  const auto top = [](std::int64_t k, std::int64_t largest) {
    return run({-1, -1}, [&](GraphWriter& graph, auto x, auto) { return graph.op(82, {x}, {-1, k, largest}); });
  };
  check_near(top(2, 1), {0, 2, 3, 1});
  check_near(top(2, 0), {3, 1, 2, 0});
  check_near(top(4, 1), {0, 2, 1, 3, 3, 1, 0, 2});
  CHECK_THROWS(top(5, 1), InvalidTensor, "(TOP_K", "5 of 4 elements");
  CHECK_THROWS(top(0, 1), agentkv::ProgramError, "the 0 largest");
}

void elements_are_taken_from_each_row() {
  const auto take = [](const Ints& indices, std::int64_t columns) {
    return run(
        {-1, -1},
        [&](GraphWriter& graph, auto x, auto given) {
          return graph.op(83, {x, graph.op(13, {given}, {-1, columns})}, {1});
        },
        indices);
  };
  check_near(take({3, 0, 1, 1}, 2), {0, 3, 5, 5});
  check_near(take({9, 0, 1, -1}, 2), {0, 3, 5, -4});  // no foreign memory is read
  CHECK_THROWS(take({3, 0, 1}, 1), InvalidTensor, "(TAKE_ALONG", "indices that do not fit its rows");
}

void elements_are_put_into_each_row() {
  const auto put = [](const Ints& indices) {
    return run(
        {-1, -1},
        [&](GraphWriter& graph, auto x, auto given) {
          return graph.op(84, {x, graph.op(13, {given}, {-1, 1}), graph.op(12, {}, {kF32}, {9})}, {1});
        },
        indices);
  };
  check_near(put({1, 3}), {3, 9, 2, 0, -4, 5, -6, 9});
  CHECK_THROWS(put({1}), InvalidTensor, "(PUT_ALONG", "indices that do not fit its rows");
}

}  // namespace

int main() {
  the_largest_and_the_smallest_of_a_row();
  elements_are_taken_from_each_row();
  elements_are_put_into_each_row();
  return 0;
}
