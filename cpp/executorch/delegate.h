// ExecuTorch's side of attention: the backend that runs `agentkv::update_and_attend` over the cache of the session that
// executes.
#pragma once

namespace agentkv {

inline constexpr const char* kCpuDelegateId = "AgentKVCPU";
// The load-time option, under the backend's name, that says under which key CacheRegistry holds the program's slot.
inline constexpr const char* kCacheKeyOption = "cache_key";

// Registers the backend with ExecuTorch once per process; harmless to call again. Throws Error when ExecuTorch refuses.
//
// What a delegate throws never crosses ExecuTorch: it is kept in the slot's `error`, and the call returns an error
// code. A program that is loaded without a slot has nowhere to keep it, so that case is logged instead.
void register_cpu_delegate();

}  // namespace agentkv
