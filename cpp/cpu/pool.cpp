#include "cpu/pool.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "core/growth.h"
#include "cpu/kernels/table.h"

namespace agentkv::cpu {

namespace {

// Kernels load whole vectors, which may reach past the last row of a pool.
constexpr std::size_t kSlack = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::byte* allocate(std::size_t bytes) {
  const std::size_t align = bytes >= kHugePage ? kHugePage : 64;
  const std::size_t size = (bytes + kSlack + align - 1) / align * align;
  void* p = std::aligned_alloc(align, size);
  if (p == nullptr) throw std::bad_alloc();
#ifdef __linux__
  if (align == kHugePage) madvise(p, size, MADV_HUGEPAGE);  // a hint: streaming K/V is hard on the TLB
#endif
  return static_cast<std::byte*>(p);
}

}  // namespace

void Pool::Free::operator()(std::byte* p) const { std::free(p); }

Pool::Pool(int n_kv_heads, int head_dim, KvDtype dtype)
    : n_kv_heads_(n_kv_heads),
      head_dim_(head_dim),
      dtype_(dtype),
      row_bytes_(static_cast<std::size_t>(head_dim) * kv_dtype_size(dtype)) {}

void Pool::reserve(Cell cells, Cell min_chunk, Cell capacity) {
  if (cells <= cells_) return;
  const Cell grown = grown_cells(cells_, cells, min_chunk, capacity);
  const std::size_t stride = static_cast<std::size_t>(grown) * row_bytes_;
  std::unique_ptr<std::byte, Free> data(allocate(stride * static_cast<std::size_t>(n_kv_heads_)));
  if (cells_ > 0) {
    for (int h = 0; h < n_kv_heads_; ++h) {
      std::memcpy(data.get() + stride * h, data_.get() + head_stride() * h, head_stride());
    }
  }
  data_ = std::move(data);
  cells_ = grown;
}

void Pool::write(const HeadsView& rows, std::int32_t token, Cell cell) {
  const auto store_row = kernels().store_row[static_cast<int>(dtype_)];
  for (int h = 0; h < n_kv_heads_; ++h) {
    const float* src = rows.data + h * rows.head_stride + token * rows.token_stride;
    std::byte* dst = data_.get() + head_stride() * h + row_bytes_ * cell;
    store_row(src, dst, head_dim_);
  }
}

void Pool::move(const Cell* src, const Cell* dst, std::size_t n) {
  std::vector<std::byte> rows(n * row_bytes_);
  for (int h = 0; h < n_kv_heads_; ++h) {
    std::byte* head = data_.get() + head_stride() * h;
    for (std::size_t i = 0; i < n; ++i) std::memcpy(&rows[i * row_bytes_], head + row_bytes_ * src[i], row_bytes_);
    for (std::size_t i = 0; i < n; ++i) std::memcpy(head + row_bytes_ * dst[i], &rows[i * row_bytes_], row_bytes_);
  }
}

void Pool::read(Cell cell, std::byte* out) const {
  for (int h = 0; h < n_kv_heads_; ++h) {
    std::memcpy(out + row_bytes_ * h, data_.get() + head_stride() * h + row_bytes_ * cell, row_bytes_);
  }
}

void Pool::restore(Cell cell, const std::byte* in) {
  for (int h = 0; h < n_kv_heads_; ++h) {
    std::memcpy(data_.get() + head_stride() * h + row_bytes_ * cell, in + row_bytes_ * h, row_bytes_);
  }
}

}  // namespace agentkv::cpu
