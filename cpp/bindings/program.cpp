// ExecuTorch programs, their sessions and the thread pool.
#include <nanobind/nanobind.h>

#include "executorch/threads.h"

namespace nb = nanobind;
using namespace nb::literals;

void bind_program(nb::module_& m) {
  m.def("get_threads", &agentkv::get_threads, "Number of threads of the process-wide pool.");
  m.def("set_threads", &agentkv::set_threads, "n"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Replaces the process-wide thread pool by one of n threads; no forward may be running.");
}
