// Joins the CPU byte layer with the bookkeeping and the process's thread pool.
#pragma once

namespace agentkv {

// Registers the builders of "AgentKVCPU" caches. Harmless when called again.
void register_cpu_builders();

}  // namespace agentkv
