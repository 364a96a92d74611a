#include "core/byte_layer.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {

std::vector<std::uint8_t> layer_groups(std::span<const Pos> windows) {
  std::vector<Pos> sizes(windows.begin(), windows.end());
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  if (!sizes.empty() && sizes.front() == 0) sizes.erase(sizes.begin());
  require<InvalidTensor>(sizes.size() < kNoGroup, "layers with ", sizes.size(), " windows; fewer than ", int{kNoGroup});
  std::vector<std::uint8_t> groups;
  for (const Pos window : windows) {
    const auto at = std::lower_bound(sizes.begin(), sizes.end(), window) - sizes.begin();
    groups.push_back(window == 0 ? kNoGroup : static_cast<std::uint8_t>(at));
  }
  return groups;
}

void CacheConfig::check() const {
  require<InvalidTensor>(windows.empty() || std::ssize(windows) == n_layers, windows.size(), " windows for ", n_layers,
                         " layers");
  require<InvalidTensor>(window >= 0 && sinks >= 0, "window and sinks are ", window, " and ", sinks,
                         "; neither may be negative");
  require<InvalidTensor>(shapes.empty() || std::ssize(shapes) == n_layers, shapes.size(), " shapes for ", n_layers,
                         " layers");
  for (const LayerShape& each : shapes) {
    require<InvalidTensor>(each.n_kv_heads >= 1 && each.k_dim >= 1 && each.v_dim >= 1 && each.v_heads >= 1,
                           "a layer of ", each.n_kv_heads, " heads of ", each.k_dim, " and ", each.v_heads, " of ",
                           each.v_dim, " numbers; at least 1");
    require<InvalidTensor>(each.has_values() || each.v_dim <= each.k_dim, "values of ", each.v_dim,
                           " numbers within keys of ", each.k_dim);
  }
  const std::pair<const char*, int> counts[] = {{"n_layers", n_layers},
                                                {"n_kv_heads", n_kv_heads},
                                                {"head_dim", head_dim},
                                                {"capacity", capacity},
                                                {"min_chunk", min_chunk}};
  for (const auto& [name, count] : counts) require<InvalidTensor>(count >= 1, name, " is ", count, "; at least 1");
}

void ByteLayer::to_quantized(std::span<const Cell>) {
  throw InvalidRange(error_text("cells of ", backend_id(), " cannot be quantised where they are"));
}

Cell ByteLayer::map_cells(Cell, Cell, const FileLanes&) {
  throw InvalidRange(error_text("files cannot be mapped into the cells of ", backend_id()));
}

void ByteLayer::read_states(std::span<const Cell>, std::span<std::byte>) const {
  throw InvalidRange(error_text("cells of ", backend_id(), " have no states"));
}

void ByteLayer::write_states(std::span<const Cell>, std::span<const std::byte>) {
  throw InvalidRange(error_text("cells of ", backend_id(), " have no states"));
}

void ByteLayer::check_moves(const Cell* src, const Cell* dst, std::size_t n, Cell end) {
  for (std::size_t i = 0; i < n; ++i) {
    require<InvalidRange>(src[i] >= 0 && src[i] < end && dst[i] >= 0 && dst[i] < end, "cannot move cell ", src[i],
                          " to ", dst[i], "; ", end, " are allocated");
  }
}

void ByteLayer::check_cells(std::span<const Cell> cells, Cell end, std::size_t n_bytes) const {
  check_cells(cells, end, n_bytes, cell_bytes());
}

void ByteLayer::check_cells(std::span<const Cell> cells, Cell end, std::size_t n_bytes, std::size_t each) {
  for (const Cell cell : cells) {
    require<InvalidRange>(cell >= 0 && cell < end, "cell ", cell, " is out of range [0, ", end, ")");
  }
  const std::size_t needed = cells.size() * each;
  require<InvalidRange>(n_bytes == needed, n_bytes, " bytes for ", cells.size(), " cells; they take ", needed);
}

}  // namespace agentkv
