#include "core/cache_builders.h"

#include "core/cells.h"
#include "core/errors.h"
#include "core/message.h"

namespace agentkv {
namespace {

template <class Maker>
Maker find(const std::map<std::string, Maker, std::less<>>& makers, const char* what, std::string_view name) {
  const auto found = makers.find(name);
  if (found != makers.end()) return found->second;
  std::string known;
  for (const auto& [other, _] : makers) known += (known.empty() ? "" : ", ") + other;
  throw RegistryError(
      error_text("no cache ", what, " '", name, "' in this process; it has ", known.empty() ? "none" : known));
}

}  // namespace

CacheBuilderRegistry::CacheBuilderRegistry() {
  add_policy("full",
             [](const CacheConfig& config) { return std::make_shared<Cells>(config.capacity, config.max_sequences); });
}

CacheBuilderRegistry& CacheBuilderRegistry::instance() {
  static CacheBuilderRegistry registry;
  return registry;
}

void CacheBuilderRegistry::add_backend(std::string_view backend_id, LayerMaker make_layer) {
  const std::lock_guard lock(mutex_);
  backends_.insert_or_assign(std::string(backend_id), std::move(make_layer));
}

void CacheBuilderRegistry::add_policy(std::string_view name, PolicyMaker make_cells) {
  const std::lock_guard lock(mutex_);
  policies_.insert_or_assign(std::string(name), std::move(make_cells));
}

BuiltCache CacheBuilderRegistry::build(std::string_view backend_id, const CacheConfig& config) const {
  LayerMaker make_layer;
  PolicyMaker make_cells;
  {
    const std::lock_guard lock(mutex_);
    make_layer = find(backends_, "backend", backend_id);
    make_cells = find(policies_, "policy", std::string_view(config.policy).substr(0, config.policy.find(':')));
  }
  auto cells = make_cells(config);
  auto layer = make_layer(config, cells);
  cells->set_layer(layer);
  return {std::move(cells), std::move(layer)};
}

std::vector<std::pair<std::string, std::string>> CacheBuilderRegistry::keys() const {
  std::vector<std::pair<std::string, std::string>> keys;
  const std::lock_guard lock(mutex_);
  for (const auto& [backend_id, _] : backends_) {
    for (const auto& [policy, __] : policies_) keys.emplace_back(backend_id, policy);
  }
  return keys;
}

}  // namespace agentkv
