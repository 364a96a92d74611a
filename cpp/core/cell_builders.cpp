#include "core/cell_builders.h"

#include <utility>

#include "core/builders.h"
#include "core/contiguous_cells.h"
#include "core/seq_cells.h"
#include "core/tree_cells.h"

namespace agentkv {
namespace {

template <class Face, class Cells>
BuiltCache<Face> join(std::shared_ptr<Cells> cells, const ByteLayerMaker& make_layer, const CacheConfig& config) {
  auto layer = make_layer(config, cells);
  return {std::move(cells), std::move(layer)};
}

}  // namespace

void add_cell_builders(std::string_view backend_id, ByteLayerMaker make_layer) {
  auto& registry = CacheBuilderRegistry::instance();
  registry.add<ContiguousCache>(backend_id, [make_layer](const CacheConfig& config) {
    return join<ContiguousCache>(std::make_shared<ContiguousCells>(config.capacity), make_layer, config);
  });
  registry.add<SeqCache>(backend_id, [make_layer](const CacheConfig& config) {
    return join<SeqCache>(std::make_shared<SeqCells>(config.capacity, config.max_sequences), make_layer, config);
  });
  registry.add<TreeSeqCache>(backend_id, [make_layer](const CacheConfig& config) {
    const auto cells = std::make_shared<TreeCells>(config.capacity, config.max_sequences);
    auto built = join<TreeSeqCache>(cells, make_layer, config);
    cells->set_layer(built.layer);
    return built;
  });
}

}  // namespace agentkv
