// The face of every drafter, and the one whose guesses a Python object makes.
#include "engine/drafter.h"

#include <nanobind/eval.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/python_error.h"
#include "bindings/tokens.h"
#include "core/errors.h"
#include "core/message.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace agentkv {
namespace {

// Its arguments are copies: Python may keep them for longer than the engine keeps the originals.
class PythonDrafter final : public Drafter {
 public:
  PythonDrafter(nb::object strategy, std::int32_t vocab_size)
      : strategy_(std::move(strategy)),
        name_(nb::cast<std::string>(strategy_.type().attr("__name__"))),
        propose_(strategy_.attr("propose")),
        observe_(nb::getattr(strategy_, "observe", nb::none())),
        observes_(!observe_.is_none()),
        vocab_size_(vocab_size) {}

  void propose(std::span<DraftRequest> requests) override {
    const nb::gil_scoped_acquire gil;
    try {
      for (DraftRequest& request : requests) {
        const nb::object answer = propose_(request.branch, copied_array<Token>(request.history), request.max_nodes);
        if (!answer.is_none()) request.draft = draft_of(answer, request.max_nodes);
      }
      checkpoint_();
    } catch (nb::python_error& error) {
      throw ForwardFailed(error_text(name_, ".propose: ", describe(error)));
    } catch (const InvalidDraft& error) {
      throw InvalidDraft(error_text(name_, ".propose: ", error.what()));
    } catch (nb::cast_error&) {
      throw ForwardFailed(error_text(
          name_, ".propose must return None or a Draft of tokens, parents and, where it has any, confidences"));
    }
  }

  void observe(BranchId branch, Pos first, std::span<const Token> tokens, std::span<const float> features) override {
    if (!observes_) return;  // without the GIL
    const nb::gil_scoped_acquire gil;
    try {
      nb::object rows = nb::none();
      if (!features.empty()) {
        rows = nb::cast(array_of<float>(std::vector(features.begin(), features.end()), tokens.size(),
                                        features.size() / tokens.size()));
      }
      observe_(branch, first, copied_array<Token>(tokens), rows);
      checkpoint_();
    } catch (nb::python_error& error) {
      throw ForwardFailed(error_text(name_, ".observe: ", describe(error)));
    }
  }

  nb::object& strategy() { return strategy_; }

  void let_go() {
    strategy_.reset();
    propose_.reset();
    observe_.reset();
    checkpoint_.reset();
  }

 private:
  Draft draft_of(const nb::object& answer, std::int32_t most) const {
    Draft draft{.tokens = tokens_of(answer.attr("tokens"), vocab_size_), .parents = tokens_of(answer.attr("parents"))};
    const nb::object confidence = answer.attr("confidence");
    if (!confidence.is_none()) {
      for (const nb::handle value : confidence) draft.confidence.push_back(nb::cast<float>(value));
    }
    check_draft(draft, vocab_size_);
    draft.cut(static_cast<std::size_t>(most));
    return draft;
  }

  nb::object strategy_;
  std::string name_;
  // Does nothing: an exception that was sent to the thread while the strategy was in C code is raised in it, and not
  // after the step, where it would take the step's report with it.
  nb::object checkpoint_ = nb::eval("lambda: None", nb::dict());
  nb::object propose_;
  nb::object observe_;
  bool observes_;
  std::int32_t vocab_size_;
};

// A strategy may lead back to its engine: let Python's collector see the cycle.
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  Py_VISIT(nb::inst_ptr<PythonDrafter>(self)->strategy().ptr());
  return 0;
}

int clear(PyObject* self) {
  nb::inst_ptr<PythonDrafter>(self)->let_go();
  return 0;
}

PyType_Slot slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)}, {Py_tp_clear, reinterpret_cast<void*>(clear)}, {0, nullptr}};

}  // namespace
}  // namespace agentkv

void bind_drafter(nb::module_& m) {
  using namespace agentkv;
  nb::class_<AcceptanceRates>(m, "AcceptanceRates", "How often the target accepts what a drafter proposes.")
      .def(
          "__init__",
          [](AcceptanceRates* self, std::vector<double> levels, std::vector<double> calibration) {
            new (self) AcceptanceRates{std::move(levels), std::move(calibration)};
          },
          "levels"_a = std::vector<double>(), "calibration"_a = std::vector<double>(),
          "levels: rate of each level of a draft where the levels above it were accepted, 16 at most. calibration: "
          "rate "
          "of nodes whose parent was accepted, by their confidence, in 16 bins of equal width over [0, 1]. What is "
          "left "
          "out is guessed.")
      .def_ro("levels", &AcceptanceRates::levels)
      .def_ro("calibration", &AcceptanceRates::calibration);
  nb::class_<Drafter>(m, "Drafter", "Guesses the tokens that branches continue with. Belongs to one engine.")
      .def_rw("adaptive", &Drafter::adaptive,
              "Whether drafts follow what they have cost and brought; without, as much is drafted and verified as "
              "there is room.")
      .def_rw("prior", &Drafter::prior,
              "What acceptance to expect before any draft was verified; read when the drafter is attached.");
  nb::class_<PythonDrafter, Drafter>(m, "PythonDrafter", nb::type_slots(slots),
                                     "A drafter whose guesses a Python object makes.")
      .def(nb::init<nb::object, std::int32_t>(), "strategy"_a, "vocab_size"_a,
           nb::sig("def __init__(self, strategy: typing.Any, vocab_size: int) -> None"),
           "strategy has `propose(branch, tokens: int32 [n], limit) -> Draft | None` and may have `observe(branch, "
           "first, tokens: int32 [n], features: float32 [n, F] | None)`. What they raise fails the generations that "
           "asked.");
}
