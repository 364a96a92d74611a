#include "mlx/builders.h"

#include <memory>
#include <utility>

#include "core/cell_builders.h"
#include "mlx/kv_cache.h"

namespace agentkv::mlx {

void register_builders() {
  add_cell_builders("AgentKVMLX", [](const CacheConfig& config, std::shared_ptr<StepPlanner> planner) {
    return std::make_shared<KvCache>(config, std::move(planner));
  });
}

}  // namespace agentkv::mlx
