// The native module `agentkv_runtime._mlx`: the MLX backend. Importing it registers the backend.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(_mlx, m) { m.doc() = "The MLX backend of agentkv: byte layer, graph, ExecuTorch delegate."; }
