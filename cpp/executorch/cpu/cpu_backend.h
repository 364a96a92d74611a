// ExecuTorch's side of attention on the CPU: the backend that runs `agentkv::update_and_attend` over the cache of the
// session that executes.
#pragma once

namespace agentkv {

inline constexpr char kCpuBackendId[] = "AgentKVCPU";

// Registers the backend with ExecuTorch and the builders of its caches; harmless to call again. Throws Error when
// ExecuTorch refuses.
void register_cpu_backend();

}  // namespace agentkv
