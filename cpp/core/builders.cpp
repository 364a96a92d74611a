#include "core/builders.h"

#include <algorithm>

namespace agentkv {

CacheBuilderRegistry& CacheBuilderRegistry::instance() {
  static CacheBuilderRegistry registry;
  return registry;
}

std::vector<std::pair<std::string, std::string>> CacheBuilderRegistry::keys() const {
  std::vector<std::pair<std::string, std::string>> keys;
  const std::lock_guard lock(mutex_);
  const auto collect = [&keys](std::string_view kind, const auto& builders) {
    for (const auto& [backend_id, builder] : builders) keys.emplace_back(backend_id, kind);
  };
  collect(kKindOf<ContiguousCache>, std::get<Builders<ContiguousCache>>(builders_));
  collect(kKindOf<SeqCache>, std::get<Builders<SeqCache>>(builders_));
  collect(kKindOf<TreeSeqCache>, std::get<Builders<TreeSeqCache>>(builders_));
  std::sort(keys.begin(), keys.end());
  return keys;
}

}  // namespace agentkv
