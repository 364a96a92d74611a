// What happens to whole cells: moved, stored and brought back, mapped from files, quantised.
#include <algorithm>
#include <new>
#include <string>
#include <vector>

#include "core/errors.h"
#include "core/message.h"
#include "cpu/file_bytes.h"
#include "cpu/kv_cache.h"

namespace agentkv::cpu {

void KvCache::move_cells(const Cell* src, const Cell* dst, std::size_t n) {
  if (allocated_ == 0) return;  // nothing is stored yet
  check_moves(src, dst, n, allocated_);
  std::vector<Cell> from[2], to[2];  // of floats, of codes
  std::vector<std::uint8_t> lacks;   // of each that is moved
  for (std::size_t i = 0; i < n; ++i) {
    from[is_quantized(src[i])].push_back(src[i]);
    to[is_quantized(src[i])].push_back(dst[i]);
    if (!lacks_.empty()) lacks.push_back(lacks_[static_cast<std::size_t>(src[i])]);
  }
  const auto move = [this](std::vector<Layer>& layers, std::span<const Cell> from, std::span<const Cell> to) {
    for (std::size_t at = 0; at < layers.size(); ++at) {
      std::vector<Cell> src, dst;
      for (std::size_t i = 0; i < from.size(); ++i) {
        if (!has_rows(at, from[i])) continue;
        src.push_back(from[i]);
        dst.push_back(to[i]);
      }
      for (Pool& pool : layers[at].pools) pool.move(src.data(), dst.data(), src.size());
      if (layers[at].states) layers[at].states->move(src.data(), dst.data(), src.size());
    }
  };
  const auto highest = std::max_element(to[1].begin(), to[1].end());
  for (Layer& layer : codes_) {
    if (highest == to[1].end()) break;
    for (Pool& pool : layer.pools) pool.reserve(*highest + 1);
  }
  move(layers_, from[0], to[0]);
  move(codes_, from[1], to[1]);
  set_quantized(to[0], false);
  set_quantized(to[1], true);
  for (std::size_t i = 0; i < lacks.size(); ++i) lacks_[static_cast<std::size_t>(dst[i])] = lacks[i];
  try {
    std::vector<Cell> moved(dst, dst + n);
    std::sort(moved.begin(), moved.end());
    discard_rows(moved);
  } catch (const std::bad_alloc&) {  // they are moved all the same
  }
}

std::size_t KvCache::cell_bytes() const {
  std::size_t total = 0;
  for (const Layer& layer : layers_) {
    for (const Pool& pool : layer.pools) total += pool.cell_bytes();
  }
  return total;
}

std::vector<CellArray> KvCache::cell_arrays() const {
  std::vector<CellArray> arrays;
  std::size_t described = 0;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const std::string layer = "layers." + std::to_string(i);
    layers_[i].k().describe(layer + ".k", arrays);
    if (layers_[i].shape.has_values()) layers_[i].v().describe(layer + ".v", arrays);
    for (; described < arrays.size(); ++described) arrays[described].group = groups_[i];
  }
  return arrays;
}

void KvCache::read_cells(std::span<const Cell> cells, std::span<std::byte> bytes) const {
  check_cells(cells, allocated_, bytes.size());
  std::byte* out = bytes.data();
  for (const Cell cell : cells) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      for (std::size_t j = 0; j < layers_[i].pools.size(); ++j) {
        const Pool& pool = layers_[i].pools[j];
        if (!has_rows(i, cell)) {
          std::fill_n(out, pool.cell_bytes(), std::byte{0});
        } else if (is_quantized(cell)) {
          codes_[i].pools[j].read_as(pool, cell, out);
        } else {
          pool.read(cell, out);
        }
        out += pool.cell_bytes();
      }
    }
  }
}

void KvCache::write_cells(std::span<const Cell> cells, std::span<const std::byte> bytes) {
  check_cells(cells, capacity_, bytes.size());
  if (cells.empty()) return;
  grow(*std::max_element(cells.begin(), cells.end()) + 1);
  const std::byte* in = bytes.data();
  set_quantized(cells, false);
  set_whole(cells);
  for (Layer& layer : layers_) {
    for (Pool& pool : layer.pools) pool.will_write(cells);
    if (layer.states) std::ranges::for_each(cells, [&](Cell cell) { layer.states->drop(cell); });
  }
  for (const Cell cell : cells) {
    for (Layer& layer : layers_) {
      for (Pool& pool : layer.pools) {
        pool.restore(cell, in);
        in += pool.cell_bytes();
      }
    }
  }
}

Cell KvCache::map_cells(Cell first, Cell count, const FileLanes& file) {
  check_file(first, count, file);
  const Cell held = allocated_;
  grow(first + count);
  for (Cell cell = first; cell < first + count; ++cell) {
    set_quantized({&cell, 1}, false);
    set_whole({&cell, 1});
  }
  for (Layer& layer : layers_) {
    for (Cell cell = first; layer.states && cell < first + count; ++cell) layer.states->drop(cell);
  }
  Cell mapped = count;
  auto offsets = file.offsets;
  for (Layer& layer : layers_) {
    for (Pool& pool : layer.pools) {
      mapped = std::min(mapped, pool.map(first, count, {file.fd, offsets.first(pool.lanes())}));
      offsets = offsets.subspan(pool.lanes());
    }
  }
  shrink(std::max(held, first + count));  // what was committed ahead of cells that need no memory
  return mapped;
}

void KvCache::check_file(Cell first, Cell count, const FileLanes& file) const {
  require<InvalidRange>(first >= 0 && count >= 1 && count <= capacity_ - first, "cells [", first, ", ",
                        std::int64_t{first} + count, ") are out of range [0, ", capacity_, ")");
  std::vector<std::size_t> row_bytes;  // of each lane
  for (const Layer& layer : layers_) {
    for (const Pool& pool : layer.pools) {
      for (std::size_t lane = 0; lane < pool.lanes(); ++lane) row_bytes.push_back(pool.lane_row_bytes(lane));
    }
  }
  require<InvalidRange>(file.offsets.size() == row_bytes.size(), file.offsets.size(), " lanes of a file for ",
                        row_bytes.size(), " of a cell");
  const std::int64_t size = file_size(file.fd);
  for (std::size_t lane = 0; lane < row_bytes.size(); ++lane) {
    const auto bytes = static_cast<std::int64_t>(row_bytes[lane]) * count;
    require<InvalidRange>(file.offsets[lane] >= 0 && bytes <= size && file.offsets[lane] <= size - bytes, bytes,
                          " bytes at byte ", file.offsets[lane], " of a file of ", size);
  }
}

std::size_t KvCache::mapped_bytes() const {
  std::size_t total = 0;
  for (const Layer& layer : layers_) {
    for (const Pool& pool : layer.pools) total += pool.mapped_bytes();
  }
  return total;
}

void KvCache::to_quantized(std::span<const Cell> cells) {
  require<InvalidRange>(!has_scales(dtypes_.keys),
                        "cells of a cache that is quantised as a whole cannot be quantised again");
  require<InvalidRange>(only_keys_and_values(), "cells of latents, convolutions or linear attention stay as they are");
  check_cells(cells, allocated_, cells.size() * cell_bytes());
  std::vector<Cell> wanted;
  for (const Cell cell : cells) {
    // Pages of a file take no memory of this process, codes of them would.
    if (!is_quantized(cell) && !layers_.front().k().is_mapped(cell)) wanted.push_back(cell);
  }
  if (wanted.empty()) return;
  std::sort(wanted.begin(), wanted.end());
  if (codes_.empty()) {
    quantized_.assign(static_cast<std::size_t>(capacity_), 0);
    std::vector<LayerShape> shapes;
    for (const Layer& layer : layers_) shapes.push_back(layer.shape);
    codes_ = make_layers(shapes, {KvDtype::Int8, KvDtype::Int8});
  }
  for (Layer& layer : codes_) {
    for (Pool& pool : layer.pools) pool.reserve(wanted.back() + 1);
  }
  // On this thread: between forwards the pool of threads may be replaced at any moment.
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    for (const Cell cell : wanted) {
      if (!has_rows(i, cell)) continue;
      for (std::size_t j = 0; j < layers_[i].pools.size(); ++j) codes_[i].pools[j].convert(layers_[i].pools[j], cell);
    }
  }
  set_quantized(wanted, true);
  discard_rows(wanted);
}

void KvCache::set_quantized(std::span<const Cell> cells, bool value) {
  if (codes_.empty()) return;
  for (const Cell cell : cells) {
    auto& is = quantized_[static_cast<std::size_t>(cell)];
    if (is != static_cast<unsigned char>(value)) schedules_.clear();
    is = value;
  }
}

void KvCache::discard(std::span<const Cell> cells, std::uint8_t groups) {
  check_cells(cells, allocated_, cells.size() * cell_bytes());
  if (lacks_.empty()) lacks_.assign(static_cast<std::size_t>(capacity_), 0);
  for (const Cell cell : cells) {
    auto& lacks = lacks_[static_cast<std::size_t>(cell)];
    lacks = std::max(lacks, groups);
  }
  std::vector<Cell> sorted(cells.begin(), cells.end());
  std::sort(sorted.begin(), sorted.end());
  discard_rows(sorted);
}

void KvCache::set_whole(std::span<const Cell> cells) {
  if (lacks_.empty()) return;
  for (const Cell cell : cells) lacks_[static_cast<std::size_t>(cell)] = 0;
}

// What these cells, in order, do not use any more: rows of floats that are codes now, and rows of layers that they
// lack.
void KvCache::discard_rows(std::span<const Cell> cells) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    discard_unused(layers_[i], cells, [&](Cell cell) { return is_quantized(cell) || !has_rows(i, cell); });
    if (layers_[i].states) {
      for (const Cell cell : cells) {
        if (!has_rows(i, cell)) layers_[i].states->drop(cell);
      }
    }
    if (codes_.empty() || groups_[i] == kNoGroup) continue;
    discard_unused(codes_[i], cells, [&](Cell cell) { return !has_rows(i, cell); });
  }
}

// In stretches that are as long as all others that went allow: whole pages are what can be given.
template <class Unused>
void KvCache::discard_unused(Layer& layer, std::span<const Cell> cells, Unused&& unused) {
  const Cell held = layer.cells();
  for (std::size_t i = 0; i < cells.size() && cells[i] < held;) {
    Cell first = cells[i], end = first;
    while (end < held && unused(end)) ++end;
    while (first < end && first > 0 && unused(first - 1)) --first;
    for (++i; i < cells.size() && cells[i] < end;) ++i;
    for (Pool& pool : layer.pools) pool.discard(first, end);
  }
}

}  // namespace agentkv::cpu
