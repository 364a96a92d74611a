// Who can build which cache: (backend_id, kind) -> builder. Backends register, sessions ask.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/byte_layer.h"
#include "core/errors.h"
#include "core/faces.h"
#include "core/message.h"

namespace agentkv {

// A bookkeeping, and the byte layer that reads its plans.
template <class Face>
struct BuiltCache {
  std::shared_ptr<Face> cache;
  std::shared_ptr<ByteLayer> layer;
};

template <class Face>
using CacheBuilder = std::function<BuiltCache<Face>(const CacheConfig&)>;

template <class Face>
inline constexpr std::string_view kKindOf = {};  // the face is the kind; the name only serves lookups and messages
template <>
inline constexpr std::string_view kKindOf<ContiguousCache> = "contiguous";
template <>
inline constexpr std::string_view kKindOf<SeqCache> = "seq";
template <>
inline constexpr std::string_view kKindOf<TreeSeqCache> = "tree";

// Process-wide, from any thread. A builder registered twice is replaced: the same backend may be loaded again.
class CacheBuilderRegistry {
 public:
  static CacheBuilderRegistry& instance();

  template <class Face>
  void add(std::string_view backend_id, CacheBuilder<Face> builder) {
    const std::lock_guard lock(mutex_);
    builders<Face>().insert_or_assign(std::string(backend_id), std::move(builder));
  }

  template <class Face>
  void remove(std::string_view backend_id) {
    const std::lock_guard lock(mutex_);
    builders<Face>().erase(std::string(backend_id));
  }

  // Throws RegistryError when the backend builds no such kind.
  template <class Face>
  BuiltCache<Face> build(std::string_view backend_id, const CacheConfig& config) {
    CacheBuilder<Face> builder;
    {
      const std::lock_guard lock(mutex_);
      const auto it = builders<Face>().find(std::string(backend_id));
      if (it != builders<Face>().end()) builder = it->second;
    }
    if (!builder) {
      throw RegistryError(error_text("backend '", backend_id, "' has no builder for a ", kKindOf<Face>, " cache"));
    }
    return builder(config);
  }

  std::vector<std::pair<std::string, std::string>> keys() const;  // (backend_id, kind), sorted

 private:
  template <class Face>
  using Builders = std::map<std::string, CacheBuilder<Face>>;

  template <class Face>
  Builders<Face>& builders() {
    return std::get<Builders<Face>>(builders_);
  }

  mutable std::mutex mutex_;
  std::tuple<Builders<ContiguousCache>, Builders<SeqCache>, Builders<TreeSeqCache>> builders_;
};

}  // namespace agentkv
