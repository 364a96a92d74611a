// States of layers that keep some, stored and brought back.
#include <cstring>
#include <string>

#include "core/errors.h"
#include "core/message.h"
#include "cpu/kv_cache.h"

namespace agentkv::cpu {

std::vector<CellArray> KvCache::state_arrays() const {
  std::vector<CellArray> arrays;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const LayerShape& shape = layers_[i].shape;
    if (!shape.has_states()) continue;
    const std::int64_t heads = std::int64_t{shape.n_kv_heads} * shape.v_heads;
    arrays.push_back({"layers." + std::to_string(i), "F32", {heads, shape.k_dim, shape.v_dim}, groups_[i]});
  }
  return arrays;
}

std::size_t KvCache::state_bytes() const {
  std::size_t total = 0;
  for (const Layer& layer : layers_) total += layer.shape.state_floats() * sizeof(float);
  return total;
}

// All layers have one at a cell, or none: they are fed and discarded together.
bool KvCache::has_state(Cell cell) const {
  if (cell < 0 || cell >= allocated_) return false;
  bool any = false;
  for (const Layer& layer : layers_) {
    if (!layer.states) continue;
    if (!layer.states->lasts(cell)) return false;
    any = true;
  }
  return any;
}

std::size_t KvCache::states() const {
  for (const Layer& layer : layers_) {
    if (layer.states) return layer.states->count();
  }
  return 0;
}

void KvCache::read_states(std::span<const Cell> cells, std::span<std::byte> bytes) const {
  check_cells(cells, allocated_, bytes.size(), state_bytes());
  std::byte* out = bytes.data();
  for (const Cell cell : cells) {
    require<InvalidRange>(has_state(cell), "cell ", cell, " has no state");
    for (const Layer& layer : layers_) {
      if (!layer.states) continue;
      const std::size_t size = layer.shape.state_floats() * sizeof(float);
      std::memcpy(out, layer.states->find(cell), size);
      out += size;
    }
  }
}

void KvCache::write_states(std::span<const Cell> cells, std::span<const std::byte> bytes) {
  check_cells(cells, allocated_, bytes.size(), state_bytes());
  const std::byte* in = bytes.data();
  for (const Cell cell : cells) {
    for (Layer& layer : layers_) {
      if (!layer.states) continue;
      const std::size_t size = layer.shape.state_floats() * sizeof(float);
      layer.states->add(cell);
      std::memcpy(layer.states->find(cell), in, size);
      in += size;
    }
  }
}

}  // namespace agentkv::cpu
