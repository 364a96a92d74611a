#include "mlx/states.h"

#include <utility>

namespace agentkv::mlx {

void States::put(Cell cell, const mx::array& state, bool passes_on) {
  of_cell_.insert_or_assign(cell, Kept{state, passes_on});
}

void States::drop(std::span<const Cell> cells) {
  for (const Cell cell : cells) of_cell_.erase(cell);
}

void States::drop_from(Cell first) { of_cell_.erase(of_cell_.lower_bound(first), of_cell_.end()); }

void States::move(const Cell* src, const Cell* dst, std::size_t n) {
  std::vector<decltype(of_cell_)::node_type> taken;
  for (std::size_t i = 0; i < n; ++i) taken.push_back(of_cell_.extract(src[i]));
  for (std::size_t i = 0; i < n; ++i) {
    of_cell_.erase(dst[i]);
    if (taken[i].empty()) continue;
    taken[i].key() = dst[i];
    of_cell_.insert(std::move(taken[i]));
  }
}

void States::collect_pending(std::vector<mx::array>& pending) const {
  for (const auto& [cell, kept] : of_cell_) {
    if (kept.state.has_primitive()) pending.push_back(kept.state);
  }
}

void States::drop_pending() {
  std::erase_if(of_cell_, [](const auto& entry) { return entry.second.state.has_primitive(); });
}

}  // namespace agentkv::mlx
