// ExecuTorch's side of MLX: the backend that runs a whole program as one MLX graph over the cache of the session that
// executes.
#pragma once

namespace agentkv {

// Registers the backend with ExecuTorch and the builders of its caches; harmless to call again. Throws Error when
// ExecuTorch refuses.
void register_mlx_backend();

}  // namespace agentkv
