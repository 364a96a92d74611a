#include "core/cell_pool.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {
namespace {

constexpr std::size_t kWordBits = 64;

// Bits [low, low + count) of a word; count in [1, 64].
std::uint64_t bit_span(std::size_t low, std::size_t count) { return (~std::uint64_t{0} >> (kWordBits - count)) << low; }

std::size_t checked_capacity(Cell capacity) {
  if (capacity < 1) throw InvalidRange(error_text("capacity is ", capacity, "; it must be at least 1 cell"));
  return static_cast<std::size_t>(capacity);
}

}  // namespace

CellPool::CellPool(Cell capacity)
    : owners_(checked_capacity(capacity), 0),
      keeps_(owners_.size(), 0),
      lacks_(owners_.size(), 0),
      free_((owners_.size() + kWordBits - 1) / kWordBits, 0) {
  clear();
}

void CellPool::clear() noexcept {
  std::fill(owners_.begin(), owners_.end(), std::uint16_t{0});
  std::fill(keeps_.begin(), keeps_.end(), std::uint8_t{0});
  std::fill(free_.begin(), free_.end(), std::uint64_t{0});
  mark_free(0, capacity());
  used_ = kept_ = 0;
  shared_ = 0;
}

Cell CellPool::window() const {
  for (std::size_t word = free_.size(); word-- > 0;) {
    const std::size_t first = word * kWordBits;
    const std::uint64_t valid = bit_span(0, std::min(kWordBits, owners_.size() - first));
    const std::uint64_t owned = ~free_[word] & valid;
    if (owned != 0) return static_cast<Cell>(first + static_cast<std::size_t>(std::bit_width(owned)));
  }
  return 0;
}

void CellPool::lowest_free(std::span<Cell> out) const {
  std::size_t n = 0;
  for (std::size_t word = hint_; n < out.size(); ++word) {
    for (std::uint64_t bits = free_[word]; bits != 0 && n < out.size(); bits &= bits - 1) {
      out[n++] = static_cast<Cell>(word * kWordBits + static_cast<std::size_t>(std::countr_zero(bits)));
    }
  }
}

Cell CellPool::find_run(Cell n, Cell align, bool kept_too) const {
  const auto taken = [&](Cell cell) { return owners(cell) > 0 || (!kept_too && is_kept(cell)); };
  for (Cell first = 0; n <= capacity() - first;) {
    Cell last = first + n - 1;
    while (last >= first && !taken(last)) --last;
    if (last < first) return first;
    const std::int64_t next = (std::int64_t{last} / align + 1) * align;
    if (next >= capacity()) break;
    first = static_cast<Cell>(next);
  }
  return -1;
}

void CellPool::take(Cell cell) noexcept {
  const auto index = static_cast<std::size_t>(cell);
  owners_[index] = 1;
  lacks_[index] = 0;
  free_[index / kWordBits] &= ~bit_span(index % kWordBits, 1);
  while (hint_ < free_.size() && free_[hint_] == 0) ++hint_;
  ++used_;
}

void CellPool::share_many(Cell first, Cell count) noexcept {
  std::uint16_t* owners = owners_.data() + first;
  Cell now_shared = 0;
  Cell now_used = 0;
  for (Cell i = 0; i < count; ++i) {
    now_used += owners[i] == 0;
    now_shared += owners[i] == 1;
    ++owners[i];
  }
  used_ += now_used;
  kept_ -= now_used;
  shared_ += now_shared;
}

void CellPool::release_many(Cell first, Cell count) noexcept {
  std::uint16_t* owners = owners_.data() + first;
  Cell freed = 0;
  Cell unshared = 0;
  for (Cell i = 0; i < count; ++i) {
    --owners[i];
    freed += owners[i] == 0;
    unshared += owners[i] == 1;
  }
  used_ -= freed;
  shared_ -= unshared;
  if (freed == 0) return;
  const std::uint8_t* keeps = keeps_.data() + first;
  const bool none_kept = std::none_of(keeps, keeps + count, [](std::uint8_t kept) { return kept != 0; });
  if (freed == count && none_kept) return mark_free(first, count);
  for (Cell i = 0; i < count; ++i) {
    if (owners[i] > 0) continue;
    if (keeps[i]) {
      ++kept_;
    } else {
      mark_free(first + i, 1);
    }
  }
}

void CellPool::keep(Cell first, Cell count) noexcept { std::fill_n(keeps_.begin() + first, count, std::uint8_t{1}); }

bool CellPool::drop(Cell cell) noexcept {
  keeps_[static_cast<std::size_t>(cell)] = 0;
  if (owners(cell) > 0) return false;
  --kept_;
  mark_free(cell, 1);
  return true;
}

void CellPool::move(std::span<const Cell> src, std::span<const Cell> dst) noexcept {
  for (std::size_t i = 0; i < src.size(); ++i) {
    const auto from = static_cast<std::size_t>(src[i]), to = static_cast<std::size_t>(dst[i]);
    std::swap(owners_[from], owners_[to]);
    std::swap(keeps_[from], keeps_[to]);
    std::swap(lacks_[from], lacks_[to]);
    free_[to / kWordBits] &= ~bit_span(to % kWordBits, 1);
    mark_free(src[i], 1);
  }
}

void CellPool::mark_free(Cell first, Cell count) noexcept {
  auto index = static_cast<std::size_t>(first);
  const std::size_t end = index + static_cast<std::size_t>(count);
  if (index < end) hint_ = std::min(hint_, index / kWordBits);
  while (index < end) {
    const std::size_t low = index % kWordBits;
    const std::size_t n = std::min(kWordBits - low, end - index);
    free_[index / kWordBits] |= bit_span(low, n);
    index += n;
  }
}

}  // namespace agentkv
