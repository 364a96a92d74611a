#include "cpu/pool.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/kernels/table.h"

namespace agentkv::cpu {

namespace {

// As safetensors calls what a row is made of.
const char* dtype_name(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::Fp32:
      return "F32";
    case KvDtype::Fp16:
      return "F16";
    case KvDtype::Bf16:
      return "BF16";
    case KvDtype::Int8:
      return "I8";
    case KvDtype::Int4:
      return "U8";
  }
  return "";
}

}  // namespace

Pool::Pool(int n_kv_heads, int head_dim, KvDtype dtype, Cell capacity, Cell min_chunk)
    : n_kv_heads_(n_kv_heads), head_dim_(head_dim), dtype_(dtype) {
  planes_.emplace_back(n_kv_heads, row_bytes(dtype, head_dim), capacity, min_chunk);
  if (has_scales(dtype)) planes_.emplace_back(n_kv_heads, sizeof(float), capacity, min_chunk);
}

void Pool::reserve(Cell cells) {
  for (RowArray& plane : planes_) plane.reserve(cells);
}

void Pool::shrink(Cell cells) noexcept {
  for (RowArray& plane : planes_) plane.shrink(cells);
}

Cell Pool::map(Cell first, Cell count, const FileLanes& file) {
  const auto heads = static_cast<std::size_t>(n_kv_heads_);
  Cell mapped = 0;
  for (std::size_t i = planes_.size(); i-- > 0;) {
    mapped = planes_[i].map(first, count, {file.fd, file.offsets.subspan(i * heads, heads)});
  }
  return mapped;
}

void Pool::will_write(std::span<const Cell> cells) noexcept {
  for (RowArray& plane : planes_) plane.will_write(cells);
}

void Pool::write(const HeadsView& rows, std::int32_t token, Cell cell) {
  for (int h = 0; h < n_kv_heads_; ++h) {
    store(rows.data + h * rows.head_stride + token * rows.token_stride, h, cell);
  }
}

void Pool::store(const float* row, int head, Cell cell) {
  auto* scale = has_scales(dtype_) ? reinterpret_cast<float*>(planes_[1].row(head, cell)) : nullptr;
  row_kernels(dtype_).store_row(row, planes_[0].row(head, cell), scale, head_dim_);
}

void Pool::move(const Cell* src, const Cell* dst, std::size_t n) {
  will_write({dst, n});
  for (RowArray& plane : planes_) {
    const std::size_t row = plane.row_bytes();
    std::vector<std::byte> held(n * row);
    for (int h = 0; h < n_kv_heads_; ++h) {
      for (std::size_t i = 0; i < n; ++i) std::memcpy(&held[i * row], plane.row(h, src[i]), row);
      for (std::size_t i = 0; i < n; ++i) std::memcpy(plane.row(h, dst[i]), &held[i * row], row);
    }
  }
}

void Pool::load(int head, Cell cell, float* row) const {
  const float scale = has_scales(dtype_) ? *reinterpret_cast<const float*>(planes_[1].row(head, cell)) : 1.0f;
  row_kernels(dtype_).load_row(planes_[0].row(head, cell), scale, row, head_dim_);
}

void Pool::convert(const Pool& other, Cell cell) {
  float row[padded_dim(kMaxHeadDim)];
  for (int h = 0; h < n_kv_heads_; ++h) {
    other.load(h, cell, row);
    store(row, h, cell);
  }
}

void Pool::discard(Cell first, Cell end) {
  for (RowArray& plane : planes_) plane.discard(first, end);
}

void Pool::describe(const std::string& name, std::vector<CellArray>& arrays) const {
  if (!has_scales(dtype_)) {
    arrays.push_back({name, dtype_name(dtype_), {n_kv_heads_, head_dim_}});
    return;
  }
  const auto width = static_cast<std::int64_t>(planes_[0].row_bytes());
  arrays.push_back({name + ".codes", dtype_name(dtype_), {n_kv_heads_, width}});
  arrays.push_back({name + ".scales", "F32", {n_kv_heads_, 1}});
}

void Pool::read(Cell cell, std::byte* out) const {
  for (const RowArray& plane : planes_) {
    for (int h = 0; h < n_kv_heads_; ++h, out += plane.row_bytes()) {
      std::memcpy(out, plane.row(h, cell), plane.row_bytes());
    }
  }
}

void Pool::read_as(const Pool& other, Cell cell, std::byte* out) const {
  float row[padded_dim(kMaxHeadDim)];
  for (int h = 0; h < n_kv_heads_; ++h, out += other.planes_[0].row_bytes()) {
    load(h, cell, row);
    row_kernels(other.dtype_).store_row(row, out, nullptr, head_dim_);
  }
}

void Pool::restore(Cell cell, const std::byte* in) {
  for (RowArray& plane : planes_) {
    for (int h = 0; h < n_kv_heads_; ++h, in += plane.row_bytes()) {
      std::memcpy(plane.row(h, cell), in, plane.row_bytes());
    }
  }
}

Cell Pool::cells() const {
  Cell cells = planes_.front().cells();
  for (const RowArray& plane : planes_) cells = std::min(cells, plane.cells());
  return cells;
}

std::size_t Pool::cell_bytes() const {
  std::size_t total = 0;
  for (const RowArray& plane : planes_) total += plane.row_bytes();
  return total * static_cast<std::size_t>(n_kv_heads_);
}

std::size_t Pool::bytes() const {
  std::size_t total = 0;
  for (const RowArray& plane : planes_) total += plane.bytes();
  return total;
}

std::size_t Pool::mapped_bytes() const {
  std::size_t total = 0;
  for (const RowArray& plane : planes_) total += plane.mapped_bytes();
  return total;
}

PoolView Pool::view() const {
  const RowArray& rows = planes_.front();
  PoolView view{rows.data(), rows.row_bytes(), rows.lane_stride(), dtype_, nullptr, 0};
  if (has_scales(dtype_)) {
    view.scales = reinterpret_cast<const float*>(planes_[1].data());
    view.scale_stride = planes_[1].lane_stride() / sizeof(float);
  }
  return view;
}

}  // namespace agentkv::cpu
