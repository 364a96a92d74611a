#include "bindings/errors.h"

#include <nanobind/stl/string.h>

#include <exception>
#include <iterator>
#include <string>

namespace nb = nanobind;

namespace agentkv {
namespace {

// By kind. Held for as long as the process lives: any module may throw until its end.
PyObject* classes[std::size(kErrorNames)] = {};

PyObject*& class_of(ErrorKind kind) { return classes[static_cast<int>(kind)]; }

void add(nb::module_& m, ErrorKind kind, nb::object bases, const char* meaning) {
  const std::string name = nb::cast<std::string>(m.attr("__name__")) + "." + name_of(kind);
  class_of(kind) = PyErr_NewExceptionWithDoc(name.c_str(), meaning, bases.ptr(), nullptr);
  if (!class_of(kind)) nb::raise_python_error();
  m.attr(name_of(kind)) = nb::borrow(class_of(kind));
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    PyErr_SetString(class_of(error.kind), error.what());
  }
}

}  // namespace

nb::object exception_of(ErrorKind kind, const std::string& message) { return nb::handle(class_of(kind))(message); }

}  // namespace agentkv

void bind_errors(nb::module_& m) {
  using namespace agentkv;
  add(m, ErrorKind::Error, nb::borrow(PyExc_RuntimeError), "Base of the errors of the native module.");
  const nb::object RuntimeError = m.attr("Error");
  const nb::object ValueError = nb::make_tuple(RuntimeError, nb::borrow(PyExc_ValueError));
#define AGENTKV_ADD_ERROR(name, base, meaning) add(m, ErrorKind::name, base, meaning);
  AGENTKV_ERRORS(AGENTKV_ADD_ERROR)
#undef AGENTKV_ADD_ERROR
  nb::register_exception_translator(translate);
}
