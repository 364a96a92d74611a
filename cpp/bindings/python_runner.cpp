// A program whose forward is a Python callable: how a torch model runs under the native step loop.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/python_error.h"
#include "core/errors.h"
#include "core/message.h"
#include "engine/model_runner.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace agentkv {
namespace {

class PythonRunner final : public ModelRunner {
 public:
  PythonRunner(nb::callable forward, std::int32_t vocab_size, std::int32_t max_tokens, std::int32_t max_logits,
               std::int32_t feature_dim)
      : info_{vocab_size, max_tokens, max_logits, feature_dim}, callable_(std::move(forward)) {
    if (vocab_size < 1 || max_tokens < 1 || max_logits < 1 || feature_dim < 0) {
      throw ProgramError(
          error_text("vocab_size, max_tokens and max_logits must be at least 1 and feature_dim at least "
                     "0; got ",
                     vocab_size, ", ", max_tokens, ", ", max_logits, " and ", feature_dim));
    }
  }

  const RunnerInfo& info() const override { return info_; }

  std::span<const float> forward(std::span<const std::int64_t> tokens, std::span<const std::int64_t> positions,
                                 std::span<const std::int64_t> logits_indices) override {
    nb::gil_scoped_acquire gil;
    try {
      // Copies: the callable may keep its arguments for longer than the step loop keeps its rows.
      nb::object returned = callable_(copied_array<std::int64_t>(tokens), copied_array<std::int64_t>(positions),
                                      copied_array<std::int64_t>(logits_indices));
      if (info_.feature_dim == 0) {
        take("logits", returned, logits_indices.size(), info_.vocab_size, logits_);
      } else {
        if (!nb::isinstance<nb::tuple>(returned) || nb::len(returned) != 2) {
          throw ForwardFailed("forward returned " + type_name(returned) + ", not a tuple of logits and features");
        }
        take("logits", returned[0], logits_indices.size(), info_.vocab_size, logits_);
        take("features", returned[1], tokens.size(), info_.feature_dim, features_);
      }
    } catch (nb::python_error& error) {
      // Made into text here, where the GIL is held: the exception outlives this scope, its Python part must not.
      throw ForwardFailed(describe(error));
    }
    return logits_;
  }

  std::span<const float> features() const override { return features_; }

  nb::callable& callable() { return callable_; }

 private:
  static std::string type_name(const nb::object& object) {
    return nb::cast<std::string>(nb::str(object.type().attr("__name__")));
  }

  static void take(const char* what, const nb::object& returned, std::size_t rows, std::int32_t columns,
                   std::vector<float>& into) {
    nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu> array;
    if (!nb::try_cast(returned, array, false)) {
      throw ForwardFailed(error_text("forward returned ", what, " of type ", type_name(returned),
                                     ", not a contiguous float32 array of 2 dimensions"));
    }
    if (array.shape(0) != rows || array.shape(1) != static_cast<std::size_t>(columns)) {
      throw ForwardFailed(error_text("forward returned ", what, " [", array.shape(0), ", ", array.shape(1), "], not [",
                                     rows, ", ", columns, "]"));
    }
    into.assign(array.data(), array.data() + array.size());
  }

  RunnerInfo info_;
  nb::callable callable_;
  std::vector<float> logits_;
  std::vector<float> features_;
};

// The callable usually is a method of an object that holds this program: let Python's collector see the cycle.
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  Py_VISIT(nb::inst_ptr<PythonRunner>(self)->callable().ptr());
  return 0;
}

int clear(PyObject* self) {
  nb::inst_ptr<PythonRunner>(self)->callable().reset();
  return 0;
}

PyType_Slot slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)}, {Py_tp_clear, reinterpret_cast<void*>(clear)}, {0, nullptr}};

}  // namespace
}  // namespace agentkv

void bind_python_runner(nb::module_& m) {
  using namespace agentkv;
  nb::class_<PythonRunner, ModelRunner>(m, "PythonRunner", nb::type_slots(slots),
                                        "A runner whose forward is a Python callable.")
      .def(nb::init<nb::callable, std::int32_t, std::int32_t, std::int32_t, std::int32_t>(), "forward"_a, nb::kw_only(),
           "vocab_size"_a, "max_tokens"_a = 512, "max_logits"_a = 64, "feature_dim"_a = 0,
           nb::sig("def __init__(self, forward: collections.abc.Callable[..., typing.Any], *, vocab_size: int, "
                   "max_tokens: int = 512, max_logits: int = 64, feature_dim: int = 0) -> None"),
           "`forward(tokens [T], positions [T], logits_indices [N]: int64 arrays) -> float32 [N, vocab_size]`; with a "
           "feature_dim a tuple of these logits and of features, float32 [T, feature_dim]. What it raises becomes "
           "ForwardFailed.");
}
