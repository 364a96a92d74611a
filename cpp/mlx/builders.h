// Joins the MLX byte layer with the bookkeeping.
#pragma once

namespace agentkv::mlx {

// Registers the builders of "AgentKVMLX" caches. Harmless when called again.
void register_builders();

}  // namespace agentkv::mlx
