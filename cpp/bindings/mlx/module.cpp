// The native module `agentkv_runtime._mlx`: the MLX backend. Importing it registers the backend.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_mlx_cache(nb::module_& m);

NB_MODULE(_mlx, m) {
  m.doc() = "The MLX backend of agentkv: byte layer, graph, ExecuTorch delegate.";
  bind_mlx_cache(m);
}
