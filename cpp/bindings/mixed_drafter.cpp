// Several drafters for one generation.
#include "spec/mixed_drafter.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

void bind_mixed_drafter(nb::module_& m) {
  using namespace agentkv;
  nb::class_<MixedDrafter, Drafter>(m, "MixedDrafter",
                                    "Several drafters, of whose guesses the engine verifies what pays best.")
      .def(nb::init<std::vector<std::shared_ptr<Drafter>>>(), "parts"_a);
}
