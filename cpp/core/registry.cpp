#include "core/registry.h"

#include <atomic>
#include <cstdint>
#include <utility>

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {

CacheRegistry& CacheRegistry::instance() {
  static CacheRegistry registry;
  return registry;
}

void CacheRegistry::install(const std::string& key, std::shared_ptr<CacheSlot> slot) {
  if (key.empty()) throw RegistryError("a cache key must not be empty");
  if (!slot) throw RegistryError(error_text("no cache slot to install under key '", key, "'"));
  const std::lock_guard lock(mutex_);
  if (!slots_.try_emplace(key, std::move(slot)).second) {
    throw RegistryError(error_text("cache key '", key, "' is in use"));
  }
}

void CacheRegistry::erase(const std::string& key) noexcept {
  std::shared_ptr<CacheSlot> last;  // freed after the lock: a byte layer's destructor may take its time
  const std::lock_guard lock(mutex_);
  if (const auto it = slots_.find(key); it != slots_.end()) {
    last = std::move(it->second);
    slots_.erase(it);
  }
}

std::shared_ptr<CacheSlot> CacheRegistry::find(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto it = slots_.find(key);
  if (it == slots_.end()) {
    throw RegistryError(error_text("no cache under key '", key, "'; ", slots_.size(), " keys are installed"));
  }
  return it->second;
}

std::vector<std::string> CacheRegistry::keys() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> keys;
  for (const auto& [key, slot] : slots_) keys.push_back(key);
  return keys;
}

std::string mint_cache_key() {
  static std::atomic<std::uint64_t> next{0};
  return "agentkv-" + std::to_string(next.fetch_add(1));
}

}  // namespace agentkv
