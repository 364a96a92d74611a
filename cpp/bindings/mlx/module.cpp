// The native module `agentkv_runtime._mlx`: the MLX backend. Importing it registers the backend.
#include <mlx/version.h>
#include <nanobind/nanobind.h>

#include <string>

#include "core/message.h"
#include "executorch/mlx/mlx_backend.h"

namespace nb = nanobind;

void bind_mlx_cache(nb::module_& m);

namespace {

// MLX promises no stable C++ interface between releases: another version may load and then compute wrongly.
void check_mlx_version() {
  const std::string built = agentkv::error_text(MLX_VERSION_MAJOR, '.', MLX_VERSION_MINOR, '.', MLX_VERSION_PATCH);
  const std::string found = ::mlx::core::version();
  if (found == built) return;
  const auto text = agentkv::error_text("agentkv_runtime._mlx was built with mlx ", built, ", but mlx ", found,
                                        " is installed: pip install mlx==", built);
  throw nb::import_error(text.c_str());
}

}  // namespace

NB_MODULE(_mlx, m) {
  m.doc() = "The MLX backend of agentkv: byte layer, graph, ExecuTorch delegate.";
  check_mlx_version();
  nb::module_::import_("agentkv_runtime._core");  // the types and errors that both modules share
  agentkv::register_mlx_backend();
  bind_mlx_cache(m);
}
