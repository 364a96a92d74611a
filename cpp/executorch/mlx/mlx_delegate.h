// ExecuTorch's side of MLX: the backend that runs a whole program as one MLX graph over the cache of the session that
// executes.
#pragma once

namespace agentkv {

inline constexpr const char* kMlxDelegateId = "AgentKVMLX";

// Registers the backend with ExecuTorch once per process; harmless to call again. Throws Error when ExecuTorch refuses.
// As the CPU's delegate it finds its slot under kCacheKeyOption and keeps what it throws there.
void register_mlx_delegate();

}  // namespace agentkv
