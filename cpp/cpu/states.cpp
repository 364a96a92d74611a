#include "cpu/states.h"

#include <new>
#include <utility>

#include "core/errors.h"

namespace agentkv::cpu {

void States::add(Cell cell, bool passes_on) {
  drop(cell);
  try {
    of_cell_[static_cast<std::size_t>(cell)] = std::make_unique_for_overwrite<float[]>(floats_);
  } catch (const std::bad_alloc&) {
    throw OutOfMemory("no memory for the state of a layer of linear attention");
  }
  ++count_;
  passes_on_[static_cast<std::size_t>(cell)] = passes_on;
}

void States::add_ends(const BlockRows& rows) {
  for (std::int32_t row = 0; row < rows.count(); ++row) {
    if (ends_block(rows.position(row))) add(rows.cell(row));
  }
}

void States::drop(Cell cell) noexcept {
  auto& state = of_cell_[static_cast<std::size_t>(cell)];
  count_ -= state != nullptr;
  state.reset();
}

void States::move(const Cell* src, const Cell* dst, std::size_t n) {
  std::vector<std::unique_ptr<float[]>> taken;
  std::vector<bool> pass_on;
  taken.reserve(n);
  for (std::size_t i = 0; i < n; ++i) {
    taken.push_back(std::move(of_cell_[static_cast<std::size_t>(src[i])]));
    pass_on.push_back(passes_on_[static_cast<std::size_t>(src[i])]);
  }
  for (std::size_t i = 0; i < n; ++i) {
    drop(dst[i]);
    of_cell_[static_cast<std::size_t>(dst[i])] = std::move(taken[i]);
    passes_on_[static_cast<std::size_t>(dst[i])] = pass_on[i];
  }
}

}  // namespace agentkv::cpu
