#include "executorch/cpu_builders.h"

#include <memory>
#include <utility>

#include "core/builders.h"
#include "core/contiguous_cells.h"
#include "core/seq_cells.h"
#include "core/tree_cells.h"
#include "cpu/kv_cache.h"
#include "executorch/threads.h"

namespace agentkv {
namespace {

constexpr char kBackendId[] = "AgentKVCPU";

template <class Face, class Cells>
BuiltCache<Face> build(std::shared_ptr<Cells> cells, const CacheConfig& config) {
  auto layer = std::make_shared<cpu::KvCache>(config, cells, parallel_for);
  return {std::move(cells), std::move(layer)};
}

}  // namespace

void register_cpu_builders() {
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

}  // namespace agentkv
