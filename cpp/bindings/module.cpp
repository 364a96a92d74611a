// The native module `agentkv_runtime._core`.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(_core, m) { m.doc() = "Native core of agentkv: bookkeeping, byte layers, step loop, ExecuTorch programs."; }
