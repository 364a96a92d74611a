// The caches of a backend: each bookkeeping of the core joined with the backend's byte layer.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "core/byte_layer.h"
#include "core/faces.h"

namespace agentkv {

using ByteLayerMaker =
    std::function<std::shared_ptr<ByteLayer>(const CacheConfig& config, std::shared_ptr<StepPlanner> planner)>;

// Registers the builders of a backend's contiguous, sequence and tree caches with CacheBuilderRegistry. Harmless when
// called again.
void add_cell_builders(std::string_view backend_id, ByteLayerMaker make_layer);

}  // namespace agentkv
