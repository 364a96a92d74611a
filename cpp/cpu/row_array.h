// Rows of bytes by lane and cell, [lanes, cells, row_bytes], in memory that follows what is used.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "core/byte_layer.h"
#include "core/types.h"
#include "cpu/page_set.h"
#include "cpu/reserved_memory.h"

namespace agentkv::cpu {

// Every lane has addresses for `capacity` rows from the beginning, and memory for the cells in use, a little more than
// that (3%, in whole pages): growing copies nothing. Where a lane is no more than a few pages long, or the system has
// no addresses to reserve, the array lies on the heap and doubles instead; so does one that outgrows 64 GiB.
class RowArray {
 public:
  RowArray(int lanes, std::size_t row_bytes, Cell capacity, Cell min_chunk);

  // Room for `cells` cells; what is there stays, and where it lies may change. Throws CacheFull when cells > capacity,
  // OutOfMemory when the system refuses; unchanged then.
  void reserve(Cell cells);
  // Gives back what lies above `cells` cells, as far as that is worth it.
  void shrink(Cell cells) noexcept;

  // Rows [first, first + count), which have room, become those of a file: whole pages are mapped where the rows and the
  // file's begin at one, the rest is copied. Returns how many rows, from the first on, are mapped. Throws InvalidRange
  // where the file cannot be read; what these rows are is open then.
  Cell map(Cell first, Cell count, const FileLanes& file);
  // Rows [first, end) hold nothing of worth: the memory of whole pages of them is given back until they are written.
  void discard(Cell first, Cell end);
  // Said before rows are written: pages of a file, and those that were given back, become memory then.
  void will_write(std::span<const Cell> cells) noexcept;

  bool is_mapped(Cell cell) const;       // is some of the row a page of a file?
  Cell cells() const { return cells_; }  // that have memory, or pages of a file
  std::size_t bytes() const;             // of memory
  std::size_t mapped_bytes() const;      // of pages of files
  std::size_t row_bytes() const { return row_bytes_; }
  std::size_t lane_stride() const { return stride_; }  // in bytes
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::byte* row(int lane, Cell cell) {
    return data_ + stride_ * static_cast<std::size_t>(lane) + row_bytes_ * static_cast<std::size_t>(cell);
  }
  const std::byte* row(int lane, Cell cell) const { return const_cast<RowArray*>(this)->row(lane, cell); }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  void commit(Cell cells);
  void move_to_heap(Cell cells);
  void set_committed(std::size_t bytes);
  std::size_t map_pages(std::size_t begin, std::size_t bytes, const FileLanes& file);
  void make_private(std::size_t lanes, std::size_t begin, std::size_t end);
  std::size_t whole_pages(std::size_t rows) const;

  std::size_t lanes_;
  std::size_t row_bytes_;
  Cell capacity_;
  Cell min_chunk_;
  Cell cells_ = 0;
  std::size_t stride_ = 0;
  std::size_t committed_ = 0;  // bytes of each lane; 0 on the heap
  PageSet mapped_;             // of each lane: pages of files
  PageSet discarded_;          // and those that have no memory
  ReservedMemory reserved_;
  std::unique_ptr<std::byte, Free> heap_;
  std::byte* data_ = nullptr;
};

}  // namespace agentkv::cpu
