#include "bindings/errors.h"

#include <nanobind/stl/string.h>

#include <exception>
#include <iterator>
#include <string>

namespace nb = nanobind;

namespace agentkv {
namespace {

// By kind. Held for as long as the process lives: any module may throw until its end.
PyObject* classes[std::size(kErrors)] = {};

PyObject* class_of(ErrorKind kind) { return classes[static_cast<int>(kind)]; }

nb::object bases_of(PythonBase base) {
  PyObject* error = class_of(ErrorKind::Error);
  if (!error) return nb::borrow(PyExc_RuntimeError);
  if (base == PythonBase::RuntimeError) return nb::borrow(error);
  return nb::make_tuple(nb::borrow(error), nb::borrow(PyExc_ValueError));
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    PyErr_SetString(class_of(error.kind), error.what());
  }
}

}  // namespace

nb::object exception_of(ErrorKind kind, const std::string& message) {
  return nb::handle(class_of(kind))(message.c_str());
}

}  // namespace agentkv

void bind_errors(nb::module_& m) {
  using namespace agentkv;
  const std::string module = nb::cast<std::string>(m.attr("__name__"));
  for (std::size_t kind = 0; kind < std::size(kErrors); ++kind) {
    const ErrorRow& row = kErrors[kind];
    const std::string name = module + "." + row.name;
    classes[kind] = PyErr_NewExceptionWithDoc(name.c_str(), row.meaning, bases_of(row.base).ptr(), nullptr);
    if (!classes[kind]) nb::raise_python_error();
    m.attr(row.name) = nb::borrow(classes[kind]);
  }
  nb::register_exception_translator(translate);
}
