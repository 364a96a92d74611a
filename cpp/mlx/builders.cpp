#include "mlx/builders.h"

#include <memory>
#include <utility>

#include "core/builders.h"
#include "core/contiguous_cells.h"
#include "core/seq_cells.h"
#include "core/tree_cells.h"
#include "mlx/kv_cache.h"

namespace agentkv::mlx {
namespace {

constexpr char kBackendId[] = "AgentKVMLX";

template <class Face, class Cells>
BuiltCache<Face> build(std::shared_ptr<Cells> cells, const CacheConfig& config) {
  auto layer = std::make_shared<KvCache>(config, cells);
  return {std::move(cells), std::move(layer)};
}

}  // namespace

void register_builders() {
  auto& registry = CacheBuilderRegistry::instance();
  registry.add<ContiguousCache>(kBackendId, [](const CacheConfig& config) {
    return build<ContiguousCache>(std::make_shared<ContiguousCells>(config.capacity), config);
  });
  registry.add<SeqCache>(kBackendId, [](const CacheConfig& config) {
    return build<SeqCache>(std::make_shared<SeqCells>(config.capacity, config.max_sequences), config);
  });
  registry.add<TreeSeqCache>(kBackendId, [](const CacheConfig& config) {
    const auto cells = std::make_shared<TreeCells>(config.capacity, config.max_sequences);
    auto built = build<TreeSeqCache>(cells, config);
    cells->set_layer(built.layer);
    return built;
  });
}

}  // namespace agentkv::mlx
