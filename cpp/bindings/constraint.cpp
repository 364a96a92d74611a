// Constraints that a Python object answers for: once per step for all generations, and once more, beside the forward,
// for their masks.
#include "engine/constraint.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings/python_error.h"
#include "core/errors.h"
#include "core/message.h"
#include "engine/token_mask.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace agentkv {
namespace {

nb::list list_of(std::span<const std::int32_t> values) {
  nb::list list;
  for (const std::int32_t value : values) list.append(value);
  return list;
}

nb::list tokens_of(const Draft* draft) { return draft ? list_of(draft->tokens) : nb::list(); }
nb::list parents_of(const Draft* draft) { return draft ? list_of(draft->parents) : nb::list(); }

// Valid for the length of a call.
nb::object view_of(std::span<std::uint32_t> masks, std::size_t rows) {
  nb::ndarray<nb::numpy, std::uint32_t, nb::ndim<2>> view(masks.data(), {rows, masks.size() / rows}, nb::handle());
  return nb::cast(view, nb::rv_policy::reference);
}

class PythonConstraint final : public Constraint {
 public:
  PythonConstraint(std::shared_ptr<ConstraintDriver> driver, std::string name, nb::object rule)
      : Constraint(std::move(driver), std::move(name)), rule_(std::move(rule)) {}

  nb::object& rule() { return rule_; }
  const nb::object& rule() const { return rule_; }

 private:
  nb::object rule_;
};

class PythonConstraintDriver final : public ConstraintDriver {
 public:
  explicit PythonConstraintDriver(const nb::object& answers)
      : take_turns_(answers.attr("take_turns")),
        grow_drafts_(answers.attr("grow_drafts")),
        fill_masks_(answers.attr("fill_masks")) {}

  void take_turns(std::span<ConstraintTurn> turns, std::span<const JobId> ended) override {
    const nb::gil_scoped_acquire gil;
    guarded([&] {
      nb::list asked, over;
      for (const ConstraintTurn& turn : turns) asked.append(asked_of(turn));
      for (const JobId job : ended) over.append(job);
      const auto answers = nb::cast<nb::list>(take_turns_(asked, over));
      for (std::size_t i = 0; i < turns.size(); ++i) take_answer(turns[i], answers[i]);
    });
  }

  void grow_drafts(std::span<DraftTurn> turns) override {
    const nb::gil_scoped_acquire gil;
    guarded([&] {
      nb::list asked;
      for (const DraftTurn& turn : turns) {
        asked.append(nb::make_tuple(turn.job, tokens_of(turn.draft), parents_of(turn.draft), turn.max_added));
      }
      const auto answers = nb::cast<nb::list>(grow_drafts_(asked));
      for (std::size_t i = 0; i < turns.size(); ++i) take_answer(turns[i], answers[i]);
    });
  }

  void fill_masks(std::span<MaskRequest> requests) override {
    const nb::gil_scoped_acquire gil;
    guarded([&] {
      nb::list asked;
      for (const MaskRequest& request : requests) {
        const std::size_t rows = 1 + (request.draft ? request.draft->size() : 0);
        asked.append(nb::make_tuple(request.job, tokens_of(request.draft), parents_of(request.draft),
                                    view_of(request.masks, rows)));
      }
      const auto errors = nb::cast<nb::list>(fill_masks_(asked));
      for (std::size_t i = 0; i < requests.size(); ++i) requests[i].error = nb::cast<std::string>(errors[i]);
    });
  }

 private:
  static nb::tuple asked_of(const ConstraintTurn& turn) {
    const auto* constraint = static_cast<const PythonConstraint*>(turn.constraint);
    const nb::object rule = turn.first ? constraint->rule() : nb::none();
    return nb::make_tuple(turn.job, rule, list_of(turn.said), turn.max_forced);
  }

  static void take_answer(ConstraintTurn& turn, const nb::handle& answer) {
    turn.forced = nb::cast<std::vector<Token>>(answer[0]);
    turn.complete = nb::cast<bool>(answer[1]);
    turn.error = nb::cast<std::string>(answer[2]);
  }

  static void take_answer(DraftTurn& turn, const nb::handle& answer) {
    turn.allowed = nb::cast<std::vector<std::int32_t>>(answer[0]);
    turn.added = nb::cast<std::vector<Token>>(answer[1]);
    turn.added_parents = nb::cast<std::vector<std::int32_t>>(answer[2]);
    turn.error = nb::cast<std::string>(answer[3]);
  }

  template <class Action>
  static void guarded(Action&& action) {
    try {
      action();
    } catch (nb::python_error& error) {
      throw ForwardFailed(describe(error));
    }
  }

  friend int traverse_driver(PyObject* self, visitproc visit, void* arg);
  friend int clear_driver(PyObject* self);

  nb::object take_turns_;
  nb::object grow_drafts_;
  nb::object fill_masks_;
};

// A rule of a user's may lead back to what holds it and its driver: let Python's collector see the cycles.
int traverse_driver(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const auto* driver = nb::inst_ptr<PythonConstraintDriver>(self);
  Py_VISIT(driver->take_turns_.ptr());
  Py_VISIT(driver->grow_drafts_.ptr());
  Py_VISIT(driver->fill_masks_.ptr());
  return 0;
}

int clear_driver(PyObject* self) {
  auto* driver = nb::inst_ptr<PythonConstraintDriver>(self);
  driver->take_turns_.reset();
  driver->grow_drafts_.reset();
  driver->fill_masks_.reset();
  return 0;
}

PyType_Slot driver_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_driver)},
                              {Py_tp_clear, reinterpret_cast<void*>(clear_driver)},
                              {0, nullptr}};

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  PythonConstraint& constraint = *nb::inst_ptr<PythonConstraint>(self);
  const nb::handle driver = nb::find(*constraint.driver());
  Py_VISIT(driver.ptr());
  Py_VISIT(constraint.rule().ptr());
  return 0;
}

int clear(PyObject* self) {
  nb::inst_ptr<PythonConstraint>(self)->rule().reset();
  return 0;
}

PyType_Slot slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)}, {Py_tp_clear, reinterpret_cast<void*>(clear)}, {0, nullptr}};

}  // namespace
}  // namespace agentkv

void bind_constraint(nb::module_& m) {
  using namespace agentkv;
  m.def("mask_words", &mask_words, "vocab_size"_a,
        "uint32 words of a row of masks: a bit per token, and one more that says that nothing may come.");
  nb::class_<ConstraintDriver>(m, "ConstraintDriver", "Answers for the constraints of all generations of a step.");
  nb::class_<PythonConstraintDriver, ConstraintDriver>(m, "PythonConstraintDriver", nb::type_slots(driver_slots),
                                                       "One that is a Python object.")
      .def(
          nb::init<nb::object>(), "answers"_a, nb::sig("def __init__(self, answers: typing.Any) -> None"),
          "answers.take_turns([(job, rule or None, said, most forced)], ended jobs) gives [(forced tokens, complete, "
          "error)]: a job's first turn comes with its rule and all that its output has said. "
          "answers.grow_drafts([(job, tokens, parents, most added)]) gives [(allowed nodes, added tokens, their "
          "parents, error)]. answers.fill_masks([(job, tokens, parents, masks: uint32 [1 + nodes, mask_words])]) fills "
          "the masks, zeros before, on another thread, and gives [error]. An error is \"\" where there is none.");
  nb::class_<Constraint>(m, "Constraint", "What a generation may say. Known by its identity.");
  nb::class_<PythonConstraint, Constraint>(m, "PythonConstraint", nb::type_slots(slots), nb::is_weak_referenceable(),
                                           "One whose driver is a PythonConstraintDriver.")
      .def(
          "__init__",
          [](PythonConstraint* self, std::shared_ptr<PythonConstraintDriver> driver, std::string name,
             nb::object rule) { new (self) PythonConstraint(std::move(driver), std::move(name), std::move(rule)); },
          "driver"_a, "name"_a, "rule"_a,
          nb::sig("def __init__(self, driver: PythonConstraintDriver, name: str, rule: typing.Any) -> None"),
          "name: for errors. rule: what the driver gets.")
      .def_prop_ro(
          "rule", [](const PythonConstraint& self) { return self.rule(); }, nb::sig("def rule(self) -> typing.Any"));
}
