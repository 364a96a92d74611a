#include "mlx/builders.h"

#include <memory>
#include <utility>

#include "core/cache_builders.h"
#include "mlx/kv_cache.h"

namespace agentkv::mlx {

void register_builders() {
  CacheBuilderRegistry::instance().add_backend("AgentKVMLX",
                                               [](const CacheConfig& config, std::shared_ptr<StepPlanner> planner) {
                                                 return std::make_shared<KvCache>(config, std::move(planner));
                                               });
}

}  // namespace agentkv::mlx
