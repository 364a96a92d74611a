#include <memory>
#include <set>
#include <string>

#include "core/errors.h"
#include "core/registry.h"
#include "cpp/check.h"

using namespace agentkv;

namespace {

void test_a_key_leads_to_its_slot() {
  auto& registry = CacheRegistry::instance();
  const std::string key = mint_cache_key();
  const auto slot = std::make_shared<CacheSlot>();
  registry.install(key, slot);
  CHECK(registry.find(key) == slot);
  CHECK_THROWS(registry.install(key, std::make_shared<CacheSlot>()), RegistryError, key, "in use");
  CHECK_EQ(registry.keys().size(), 1u);
  registry.erase(key);
  CHECK_THROWS(registry.find(key), RegistryError, key);
  CHECK(registry.keys().empty());
}

void test_refusals() {
  auto& registry = CacheRegistry::instance();
  CHECK_THROWS(registry.install("", std::make_shared<CacheSlot>()), RegistryError, "empty");
  CHECK_THROWS(registry.install("k", nullptr), RegistryError, "'k'");
  registry.erase("never installed");
}

void test_keys_are_never_used_twice() {
  std::set<std::string> keys;
  for (int i = 0; i < 100; ++i) keys.insert(mint_cache_key());
  CHECK_EQ(keys.size(), 100u);
}

}  // namespace

int main() {
  test_a_key_leads_to_its_slot();
  test_refusals();
  test_keys_are_never_used_twice();
}
