#include "cpu/row_array.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "core/errors.h"
#include "core/growth.h"
#include "core/message.h"
#include "cpu/file_bytes.h"

namespace agentkv::cpu {
namespace {

// Kernels load whole vectors, which may reach past the last row.
constexpr std::size_t kSlack = 64;
constexpr std::size_t kAlign = 64;
constexpr std::size_t kFewPages = 8;
// What a capacity that means "no bound" may take of the addresses of a process.
constexpr std::size_t kMostReserved = std::size_t{1} << 36;
// The part of what is needed that is committed on top of it, so that few steps have to ask the system.
constexpr std::size_t kAhead = 32;

std::size_t rounded_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

[[noreturn]] void refuse(std::size_t bytes, Cell cells) {
  throw OutOfMemory(error_text("the system refused ", bytes, " bytes for keys and values of ", cells,
                               " cells; close branches and compact, free memory, or raise the limit on it"));
}

}  // namespace

void RowArray::Free::operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{kAlign}); }

RowArray::RowArray(int lanes, std::size_t row_bytes, Cell capacity, Cell min_chunk)
    : lanes_(static_cast<std::size_t>(lanes)), row_bytes_(row_bytes), capacity_(capacity), min_chunk_(min_chunk) {
  const std::size_t page = ReservedMemory::page_size();
  const std::size_t stride =
      std::min(whole_pages(static_cast<std::size_t>(capacity)), kMostReserved / lanes_ / page * page);
  if (stride <= kFewPages * page) return;
  reserved_ = ReservedMemory(stride * lanes_ + kSlack);
  if (!reserved_) return;
  stride_ = stride;
  data_ = reserved_.data();
}

std::size_t RowArray::whole_pages(std::size_t rows) const {
  return rounded_up(rows * row_bytes_, ReservedMemory::page_size());
}

std::size_t RowArray::bytes() const {
  if (!reserved_) return lanes_ * static_cast<std::size_t>(cells_) * row_bytes_;
  return lanes_ * (committed_ - discarded_.count() * ReservedMemory::page_size()) - mapped_bytes();
}

std::size_t RowArray::mapped_bytes() const { return lanes_ * mapped_.count() * ReservedMemory::page_size(); }

void RowArray::reserve(Cell cells) {
  if (cells <= cells_) return;
  const Cell grown = grown_cells(cells_, cells, min_chunk_, capacity_);
  if (reserved_ && whole_pages(static_cast<std::size_t>(cells)) <= stride_) {
    commit(cells);
  } else {
    move_to_heap(grown);
  }
}

void RowArray::commit(Cell cells) {
  const auto needed = static_cast<std::size_t>(cells);
  const std::size_t mapped = mapped_.count() * ReservedMemory::page_size() / row_bytes_;
  const std::size_t bytes = std::min(whole_pages(needed + (needed - mapped) / kAhead), stride_);
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    if (reserved_.commit(lane * stride_ + committed_, lane * stride_ + bytes)) continue;
    while (lane-- > 0) reserved_.release(lane * stride_ + committed_, lane * stride_ + bytes);
    refuse(lanes_ * (bytes - committed_), cells);
  }
  set_committed(bytes);
}

void RowArray::shrink(Cell cells) noexcept {
  if (cells >= cells_) return;
  if (reserved_) {
    const std::size_t bytes = whole_pages(static_cast<std::size_t>(cells));
    if (bytes >= committed_) return;
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      reserved_.release(lane * stride_ + bytes, lane * stride_ + committed_);
    }
    set_committed(bytes);
  } else if (const Cell kept = cells == 0 ? 0 : grown_cells(0, cells, min_chunk_, capacity_); kept < cells_) {
    try {
      move_to_heap(kept);
    } catch (const OutOfMemory&) {  // it stays where it is
    }
  }
}

Cell RowArray::map(Cell first, Cell count, const FileLanes& file) {
  const std::size_t begin = static_cast<std::size_t>(first) * row_bytes_;
  const std::size_t bytes = static_cast<std::size_t>(count) * row_bytes_;
  const std::size_t whole = map_pages(begin, bytes, file);
  const std::size_t page = ReservedMemory::page_size();
  mapped_.remove((begin + whole) / page, (begin + bytes + page - 1) / page);
  discarded_.remove(begin / page, (begin + bytes + page - 1) / page);
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    read_file(file.fd, file.offsets[lane] + static_cast<std::int64_t>(whole),
              {data_ + lane * stride_ + begin + whole, bytes - whole});
  }
  return static_cast<Cell>(whole / row_bytes_);
}

// Returns how many bytes of each lane are mapped, from the first on: all whole pages or none.
std::size_t RowArray::map_pages(std::size_t begin, std::size_t bytes, const FileLanes& file) {
  const auto page = static_cast<std::int64_t>(ReservedMemory::page_size());
  const auto at_page = [page](std::int64_t at) { return at % page == 0; };
  const std::size_t whole = bytes - bytes % ReservedMemory::page_size();
  if (!reserved_ || whole == 0 || !at_page(static_cast<std::int64_t>(begin)) ||
      !std::all_of(file.offsets.begin(), file.offsets.end(), at_page)) {
    return 0;
  }
  const std::size_t first = begin / ReservedMemory::page_size(), end = first + whole / ReservedMemory::page_size();
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    const std::size_t at = lane * stride_ + begin;
    if (reserved_.map_file(at, at + whole, file.fd, file.offsets[lane])) continue;
    mapped_.remove(first, end);
    make_private(lane + 1, begin, begin + whole);
    return 0;
  }
  mapped_.add(first, end);
  return whole;
}

// Bytes [begin, end) of the first lanes are memory again, whatever is in it; on the heap where the system refuses that.
void RowArray::make_private(std::size_t lanes, std::size_t begin, std::size_t end) {
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    reserved_.release(lane * stride_ + begin, lane * stride_ + end);
    if (!reserved_.commit(lane * stride_ + begin, lane * stride_ + end)) return move_to_heap(cells_);
  }
}

bool RowArray::is_mapped(Cell cell) const {
  const std::size_t begin = static_cast<std::size_t>(cell) * row_bytes_, page = ReservedMemory::page_size();
  return mapped_.has(begin / page) || mapped_.has((begin + row_bytes_ - 1) / page);
}

void RowArray::discard(Cell first, Cell end) {
  if (!reserved_) return;
  const std::size_t page = ReservedMemory::page_size();
  const std::size_t last = static_cast<std::size_t>(end) * row_bytes_ / page;
  for (std::size_t at = whole_pages(static_cast<std::size_t>(first)) / page; at < last;) {
    std::size_t stop = at;
    while (stop < last && !mapped_.has(stop) && !discarded_.has(stop)) ++stop;
    discarded_.add(at, stop);
    for (std::size_t lane = 0; lane < lanes_ && stop > at; ++lane) {
      reserved_.discard(lane * stride_ + at * page, lane * stride_ + stop * page);
    }
    at = stop + 1;
  }
}

void RowArray::will_write(std::span<const Cell> cells) noexcept {
  if (mapped_.count() == 0 && discarded_.count() == 0) return;
  const std::size_t page = ReservedMemory::page_size();
  for (const Cell cell : cells) {
    const std::size_t begin = static_cast<std::size_t>(cell) * row_bytes_;
    const std::size_t end = (begin + row_bytes_ + page - 1) / page;
    mapped_.remove(begin / page, end);
    discarded_.remove(begin / page, end);
  }
}

void RowArray::set_committed(std::size_t bytes) {
  for (PageSet* pages : {&mapped_, &discarded_}) {
    pages->remove(bytes / ReservedMemory::page_size(), committed_ / ReservedMemory::page_size());
  }
  committed_ = bytes;
  cells_ = static_cast<Cell>(std::min(bytes / row_bytes_, static_cast<std::size_t>(capacity_)));
}

void RowArray::move_to_heap(Cell cells) {
  const std::size_t stride = static_cast<std::size_t>(cells) * row_bytes_;
  const std::size_t size = rounded_up(stride * lanes_ + kSlack, kAlign);
  std::unique_ptr<std::byte, Free> data;
  if (cells > 0) {
    data.reset(static_cast<std::byte*>(::operator new(size, std::align_val_t{kAlign}, std::nothrow)));
    if (!data) refuse(size, cells);
    const std::size_t kept = static_cast<std::size_t>(std::min(cells, cells_)) * row_bytes_;
    for (std::size_t lane = 0; lane < lanes_ && kept > 0; ++lane) {
      std::memcpy(data.get() + lane * stride, data_ + lane * stride_, kept);
    }
  }
  heap_ = std::move(data);
  mapped_ = PageSet();
  discarded_ = PageSet();
  reserved_ = ReservedMemory();
  committed_ = 0;
  data_ = heap_.get();
  stride_ = stride;
  cells_ = cells;
}

}  // namespace agentkv::cpu
