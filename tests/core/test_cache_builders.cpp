#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/cache_builders.h"
#include "core/cells.h"
#include "core/errors.h"
#include "core/steps.h"
#include "cpp/check.h"

using namespace agentkv;

namespace {

// A byte layer without bytes.
class NoBytes final : public ByteLayer {
 public:
  std::string_view backend_id() const override { return "NoBytes"; }
  std::size_t bytes() const override { return 0; }
  Cell allocated_cells() const override { return 1 << 20; }
  void move_cells(const Cell* src, const Cell* dst, std::size_t n) override {
    for (std::size_t i = 0; i < n; ++i) moved.emplace_back(src[i], dst[i]);
  }
  std::size_t cell_bytes() const override { return 0; }
  std::vector<CellArray> cell_arrays() const override { return {}; }
  void read_cells(std::span<const Cell>, std::span<std::byte>) const override {}
  void write_cells(std::span<const Cell>, std::span<const std::byte>) override {}
  std::vector<std::pair<Cell, Cell>> moved;
};

CacheConfig config(Cell capacity) {
  CacheConfig config;
  config.capacity = capacity;
  return config;
}

void test_a_backend_builds_every_policy() {
  auto& builders = CacheBuilderRegistry::instance();
  builders.add_backend("NoBytes",
                       [](const CacheConfig&, std::shared_ptr<StepPlanner>) { return std::make_shared<NoBytes>(); });
  const auto keys = builders.keys();
  CHECK(std::find(keys.begin(), keys.end(), std::pair<std::string, std::string>("NoBytes", "full")) != keys.end());
  const BuiltCache built = builders.build("NoBytes", config(8));
  CHECK_EQ(built.cells->capacity(), 8);
  CHECK_EQ(built.layer->backend_id(), "NoBytes");
}

void test_refusals_name_what_there_is() {
  auto& builders = CacheBuilderRegistry::instance();
  CHECK_THROWS(builders.build("Absent", config(8)), RegistryError, "backend 'Absent'", "NoBytes");
  CacheConfig other = config(8);
  other.policy = "half";
  CHECK_THROWS(builders.build("NoBytes", other), RegistryError, "policy 'half'", "full");
  CHECK_THROWS(builders.build("NoBytes", config(0)), InvalidRange, "capacity is 0");
}

void test_accepted_drafts_move_through_the_layer() {
  const BuiltCache built = CacheBuilderRegistry::instance().build("NoBytes", config(8));
  auto& cells = *built.cells;
  const std::vector<std::int32_t> parents{-1, -1};
  cells.propose(parents, 2);
  testing::step(cells, {0, 0});
  const std::vector<std::int32_t> accepted{1};
  cells.commit(accepted, 1);
  const auto& moved = static_cast<const NoBytes&>(*built.layer).moved;
  CHECK(moved == (std::vector<std::pair<Cell, Cell>>{{1, 0}}));
}

}  // namespace

int main() {
  test_a_backend_builds_every_policy();
  test_refusals_name_what_there_is();
  test_accepted_drafts_move_through_the_layer();
}
