// The exceptions of core/errors.h as Python classes of the same names, all deriving from _core.Error.
#include "core/errors.h"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_errors(nb::module_& m) {
  using namespace agentkv;
  nb::exception<Error> base(m, "Error", PyExc_RuntimeError);
  nb::exception<CacheFull>(m, "CacheFull", base.ptr());
  nb::exception<TooManySequences>(m, "TooManySequences", base.ptr());
  nb::exception<UnknownSequence>(m, "UnknownSequence", base.ptr());
  nb::exception<InvalidRange>(m, "InvalidRange", base.ptr());
  nb::exception<InvalidStep>(m, "InvalidStep", base.ptr());
  nb::exception<InvalidTree>(m, "InvalidTree", base.ptr());
  nb::exception<InvalidTensor>(m, "InvalidTensor", base.ptr());
  nb::exception<RegistryError>(m, "RegistryError", base.ptr());
  nb::exception<ProgramError>(m, "ProgramError", base.ptr());
  nb::exception<ForwardFailed>(m, "ForwardFailed", base.ptr());
}
