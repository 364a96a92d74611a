// What happens to whole cells: moved, stored and brought back.
#include <algorithm>
#include <string>
#include <vector>

#include "mlx/kv_cache.h"
#include "mlx/owner.h"

namespace agentkv::mlx {
namespace {

mx::array indices(std::span<const Cell> cells) {
  return mx::array(cells.data(), {static_cast<int>(cells.size())}, mx::int32);
}

}  // namespace

void KvCache::move_cells(const Cell* src, const Cell* dst, std::size_t n) {
  on_owner([=, this] {
    for (const Layer& layer : layers_) {
      if (layer.v().cells() > 0) check_moves(src, dst, n, layer.v().cells());
    }
    if (n == 0) return;
    const mx::array from = indices({src, n}), to = indices({dst, n});
    try {
      for (const Layer& layer : layers_) {
        if (layer.v().cells() == 0) continue;
        for (const auto& pool : layer.pools) pool->gather_into(from, to);
        if (layer.states) layer.states->move(src, dst, n);
      }
      settle();
    } catch (...) {
      abandon();
      throw;
    }
  });
}

std::size_t KvCache::cell_bytes() const {
  std::size_t total = 0;
  for (const Layer& layer : layers_) {
    for (const auto& pool : layer.pools) total += pool->cell_bytes();
  }
  return total;
}

std::vector<CellArray> KvCache::cell_arrays() const {
  std::vector<CellArray> arrays;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const std::string layer = "layers." + std::to_string(i);
    const std::size_t first = arrays.size();
    layers_[i].k().describe(layer + ".k", arrays);
    if (layers_[i].shape.has_values()) layers_[i].v().describe(layer + ".v", arrays);
    for (std::size_t at = first; at < arrays.size(); ++at) arrays[at].group = groups_[i];
  }
  return arrays;
}

void KvCache::read_cells(std::span<const Cell> cells, std::span<std::byte> bytes) const {
  on_owner([&] {
    Cell end = capacity_;
    for (const Layer& layer : layers_) end = std::min(end, layer.v().cells());
    check_cells(cells, end, bytes.size());
    if (cells.empty()) return;
    const mx::array index = indices(cells);
    std::byte* out = bytes.data();
    for (const Layer& layer : layers_) {
      for (const auto& pool : layer.pools) {
        pool->read_bytes(index, out, cell_bytes());
        out += pool->cell_bytes();
      }
    }
  });
}

void KvCache::write_cells(std::span<const Cell> cells, std::span<const std::byte> bytes) {
  on_owner([&] {
    check_cells(cells, capacity_, bytes.size());
    if (cells.empty()) return;
    const mx::array index = indices(cells);
    const std::byte* in = bytes.data();
    try {
      for (Layer& layer : layers_) {
        reserve(layer, *std::max_element(cells.begin(), cells.end()) + 1);
        for (const auto& pool : layer.pools) {
          pool->restore(index, in, cell_bytes());
          in += pool->cell_bytes();
        }
        if (layer.states) layer.states->drop(cells);
      }
      settle();
    } catch (...) {
      abandon();
      throw;
    }
  });
}

}  // namespace agentkv::mlx
