// The face of every program: what the step loop runs and what tests drive directly.
#include "engine/model_runner.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <utility>
#include <vector>

#include "bindings/arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace agentkv {
namespace {

using Int64Array = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const std::int64_t> span_of(const Int64Array& array) { return {array.data(), array.size()}; }

nb::object forward(ModelRunner& runner, const Int64Array& tokens, const Int64Array& positions,
                   const Int64Array& logits_indices) {
  std::vector<float> rows;
  {
    nb::gil_scoped_release release;
    std::span<const float> logits = runner.forward(span_of(tokens), span_of(positions), span_of(logits_indices));
    rows.assign(logits.begin(), logits.end());
  }
  return nb::cast(array_of<float>(std::move(rows), logits_indices.size(), runner.info().vocab_size));
}

nb::object features(ModelRunner& runner) {
  const auto rows = runner.features();
  const auto dim = static_cast<std::size_t>(runner.info().feature_dim);
  return nb::cast(array_of<float>(std::vector(rows.begin(), rows.end()), dim ? rows.size() / dim : 0, dim));
}

}  // namespace
}  // namespace agentkv

void bind_model_runner(nb::module_& m) {
  using namespace agentkv;
  nb::class_<ModelRunner>(m, "ModelRunner", "One forward over the rows of its cache's open step.")
      .def_prop_ro(
          "vocab_size", [](ModelRunner& runner) { return runner.info().vocab_size; }, "Logits per row.")
      .def_prop_ro(
          "max_tokens", [](ModelRunner& runner) { return runner.info().max_tokens; },
          "Rows that one forward takes at most.")
      .def_prop_ro(
          "max_logits", [](ModelRunner& runner) { return runner.info().max_logits; },
          "Logits rows that one forward returns at most.")
      .def_prop_ro(
          "feature_dim", [](ModelRunner& runner) { return runner.info().feature_dim; }, "Features per row; 0 for none.")
      .def("features", &features, nb::sig("def features(self) -> numpy.typing.NDArray[numpy.float32]"),
           "float32 [T, feature_dim] of the last forward, a copy; [0, 0] where feature_dim is 0.")
      .def(
          "forward", &forward, "tokens"_a, "positions"_a, "logits_indices"_a,
          nb::sig("def forward(self, tokens: numpy.typing.NDArray[numpy.int64], "
                  "positions: numpy.typing.NDArray[numpy.int64], logits_indices: numpy.typing.NDArray[numpy.int64]) -> "
                  "numpy.typing.NDArray[numpy.float32]"),
          "tokens [T], positions [T], logits_indices [N]: int64. Returns float32 [N, vocab_size] of those rows. Raises "
          "ForwardFailed; abort the step then.");
}
