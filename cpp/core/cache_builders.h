// Builds caches: a policy (which positions stay cached) joined with a backend (what holds their bytes). Both lists are
// open: whoever links the core can add to them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/byte_layer.h"
#include "core/cache.h"

namespace agentkv {

// A bookkeeping, and the byte layer that reads its plans.
struct BuiltCache {
  std::shared_ptr<Bookkeeping> cells;
  std::shared_ptr<ByteLayer> layer;
};

using LayerMaker =
    std::function<std::shared_ptr<ByteLayer>(const CacheConfig& config, std::shared_ptr<StepPlanner> planner)>;
using PolicyMaker = std::function<std::shared_ptr<Bookkeeping>(const CacheConfig& config)>;

// Process-wide, from any thread. What is added under a name that is taken replaces it: a backend may be loaded again.
class AGENTKV_API CacheBuilderRegistry {
 public:
  static CacheBuilderRegistry& instance();

  void add_backend(std::string_view backend_id, LayerMaker make_layer);
  // "full" (Cells) is there from the start. A policy may have an argument, which its maker reads: config.policy
  // "window:1024" asks the maker of "window".
  void add_policy(std::string_view name, PolicyMaker make_cells);

  // Throws RegistryError for an unknown backend or policy, and what their makers throw.
  BuiltCache build(std::string_view backend_id, const CacheConfig& config) const;

  std::vector<std::pair<std::string, std::string>> keys() const;  // (backend_id, policy) that can be built, sorted

 private:
  CacheBuilderRegistry();

  mutable std::mutex mutex_;
  std::map<std::string, LayerMaker, std::less<>> backends_;
  std::map<std::string, PolicyMaker, std::less<>> policies_;
};

}  // namespace agentkv
