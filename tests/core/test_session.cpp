#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/contiguous_cells.h"
#include "core/seq_cells.h"
#include "core/session.h"
#include "cpp/check.h"

using namespace agentkv;

namespace {

// A byte layer without bytes.
class NoBytes final : public ByteLayer {
 public:
  std::string_view backend_id() const override { return "NoBytes"; }
  std::size_t bytes() const override { return 0; }
  Cell allocated_cells() const override { return 0; }
  void move_cells(const Cell*, const Cell*, std::size_t) override {}
};

CacheConfig config(Cell capacity) {
  CacheConfig config;
  config.capacity = capacity;
  return config;
}

void register_builders() {
  auto& builders = CacheBuilderRegistry::instance();
  builders.add<SeqCache>("NoBytes", [](const CacheConfig& config) {
    return BuiltCache<SeqCache>{std::make_shared<SeqCells>(config.capacity, config.max_sequences),
                                std::make_shared<NoBytes>()};
  });
  builders.add<ContiguousCache>("NoBytes", [](const CacheConfig& config) {
    return BuiltCache<ContiguousCache>{std::make_shared<ContiguousCells>(config.capacity), std::make_shared<NoBytes>()};
  });
}

void test_builders() {
  auto& builders = CacheBuilderRegistry::instance();
  CHECK(builders.keys() ==
        (std::vector<std::pair<std::string, std::string>>{{"NoBytes", "contiguous"}, {"NoBytes", "seq"}}));
  CHECK_THROWS(make_tree_session("NoBytes", config(8), mint_cache_key()), RegistryError, "NoBytes", "tree");
  CHECK_THROWS(make_seq_session("Absent", config(8), mint_cache_key()), RegistryError, "Absent", "seq");
  CHECK_THROWS(make_seq_session("NoBytes", config(0), mint_cache_key()), InvalidRange, "capacity is 0");
  CHECK(CacheRegistry::instance().keys().empty());
}

void test_a_session_with_a_key_owns_its_slot() {
  auto& registry = CacheRegistry::instance();
  const std::string key = mint_cache_key();
  std::shared_ptr<CacheSlot> held;
  {
    SeqSession session = make_seq_session("NoBytes", config(8), key);
    held = registry.find(key);
    CHECK(held->layer == session.layer());
    CHECK_EQ(session.cache().capacity(), 8);
    CHECK_THROWS(make_seq_session("NoBytes", config(8), key), RegistryError, key, "in use");
    CHECK(registry.find(key) == held);
    const SeqSession moved = std::move(session);
    CHECK(registry.contains(key));
    CHECK_EQ(moved.key(), key);
  }
  CHECK(!registry.contains(key));
  CHECK(held->layer == nullptr);
  CHECK_THROWS(registry.find(key), RegistryError, key);
}

void test_erased_when_the_scope_throws() {
  const std::string key = mint_cache_key();
  try {
    const DecodeSession session = make_decode_session("NoBytes", config(8), key);
    CHECK(CacheRegistry::instance().contains(key));
    throw std::runtime_error("leave");
  } catch (const std::runtime_error&) {
  }
  CHECK(!CacheRegistry::instance().contains(key));
}

void test_sessions_share_the_slot_of_a_program() {
  auto slot = std::make_shared<CacheSlot>();
  const std::string key = mint_cache_key();
  CacheRegistry::instance().install(key, slot);
  SeqSession first = make_seq_session("NoBytes", config(8), slot);
  CHECK(slot->layer == nullptr);
  first.activate();
  {
    SeqSession second = make_seq_session("NoBytes", config(16), slot);
    second.activate();
    CHECK(slot->layer == second.layer());
    first.activate();
  }
  CHECK(slot->layer == first.layer());  // a session that is not active takes nothing out
  CHECK_EQ(first.key(), "");
  CHECK_EQ(CacheRegistry::instance().keys().size(), 1u);
  CacheRegistry::instance().erase(key);
  CHECK_THROWS(make_seq_session("NoBytes", config(8), std::shared_ptr<CacheSlot>()), RegistryError, "slot");
}

void test_registry_refusals() {
  auto& registry = CacheRegistry::instance();
  CHECK_THROWS(registry.install("", std::make_shared<CacheSlot>()), RegistryError, "empty");
  CHECK_THROWS(registry.install("k", nullptr), RegistryError, "'k'");
  registry.erase("never installed");
  std::set<std::string> keys;
  for (int i = 0; i < 100; ++i) keys.insert(mint_cache_key());
  CHECK_EQ(keys.size(), 100u);
}

}  // namespace

int main() {
  register_builders();
  test_builders();
  test_a_session_with_a_key_owns_its_slot();
  test_erased_when_the_scope_throws();
  test_sessions_share_the_slot_of_a_program();
  test_registry_refusals();
}
