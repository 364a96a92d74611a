#include "mlx/pool.h"

#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "core/growth.h"

namespace agentkv::mlx {

namespace {

std::string name_of(mx::Dtype dtype) {
  if (dtype == mx::float16) return "F16";
  if (dtype == mx::bfloat16) return "BF16";
  return dtype == mx::uint32 ? "U32" : "F32";
}

}  // namespace

void Pool::add_plane(std::string name, int width, mx::Dtype dtype) {
  planes_.push_back({std::move(name), width, dtype, mx::array({}, dtype)});
}

void Pool::ensure(Cell cells, Cell min_chunk, Cell capacity) {
  if (cells <= cells_) return;
  const Cell grown = grown_cells(cells_, cells, min_chunk, capacity);
  for (Plane& plane : planes_) {
    // Zeros, because what a mask hides still takes part in the sum: 0 times a NaN is NaN.
    mx::array larger = mx::zeros(shape(plane, grown), plane.dtype);
    if (cells_ > 0) larger = mx::slice_update(larger, plane.cells, mx::Shape{0, 0, 0, 0}, shape(plane, cells_));
    larger.eval();  // at once, so that no more than one plane is held twice
    plane.cells = larger;
  }
  cells_ = grown;
}

void Pool::write(const mx::array& rows, std::span<const Cell> cells) {
  const auto breaks = [](Cell a, Cell b) { return b != a + 1; };
  if (std::adjacent_find(cells.begin(), cells.end(), breaks) == cells.end()) return write_run(rows, cells.front());
  scatter_rows(rows, mx::array(cells.data(), {static_cast<int>(cells.size())}, mx::int32));
}

void Pool::write_run(const mx::array& rows, Cell first) {
  const Cell end = first + rows.shape(2);
  // Where the update is the whole array, slice_update returns the rows themselves instead of writing them.
  if (end - first == cells_) return scatter_rows(rows, mx::arange(first, end, mx::int32));
  const std::vector<mx::array> encoded = encode(rows);
  for (std::size_t i = 0; i < planes_.size(); ++i) {
    Plane& plane = planes_[i];
    // The assignment alone lets the old array go: should slice_update throw, the plane is as it was.
    plane.cells = mx::slice_update(plane.cells, encoded[i], mx::Shape{0, 0, first, 0},
                                   mx::Shape{1, n_kv_heads_, end, plane.width});
  }
}

void Pool::scatter_rows(const mx::array& rows, const mx::array& cells) {
  const std::vector<mx::array> encoded = encode(rows);
  for (std::size_t i = 0; i < planes_.size(); ++i) {
    const mx::array updates = mx::expand_dims(mx::transpose(encoded[i], {2, 0, 1, 3}), 3);
    planes_[i].cells = mx::scatter(planes_[i].cells, cells, updates, 2);
  }
}

void Pool::gather_into(const mx::array& src, const mx::array& dst) {
  for (Plane& plane : planes_) {
    mx::array rows = mx::expand_dims(mx::transpose(mx::take(plane.cells, src, 2), {2, 0, 1, 3}), 3);
    rows.eval();  // before the write, which then finds no reader of the plane and stays in place
    plane.cells = mx::scatter(plane.cells, dst, rows, 2);
  }
}

void Pool::read_bytes(const mx::array& cells, std::byte* out, std::size_t stride) const {
  for (const Plane& plane : planes_) {
    mx::array rows = mx::contiguous(mx::transpose(mx::take(plane.cells, cells, 2), {2, 0, 1, 3}));
    rows.eval();
    const std::size_t size = plane_bytes(plane);
    const auto* data = reinterpret_cast<const std::byte*>(rows.data<std::uint8_t>());
    for (int i = 0; i < cells.shape(0); ++i) std::memcpy(out + i * stride, data + i * size, size);
    out += size;
  }
}

void Pool::restore(const mx::array& cells, const std::byte* in, std::size_t stride) {
  const int n = cells.shape(0);
  for (Plane& plane : planes_) {
    const std::size_t size = plane_bytes(plane);
    auto data = std::make_unique<std::byte[]>(n * size);
    for (int i = 0; i < n; ++i) std::memcpy(data.get() + i * size, in + i * stride, size);
    const mx::array rows(data.release(), mx::Shape{n, 1, n_kv_heads_, 1, plane.width}, plane.dtype,
                         [](void* p) { delete[] static_cast<std::byte*>(p); });
    plane.cells = mx::scatter(plane.cells, cells, rows, 2);
    in += size;
  }
}

std::size_t Pool::cell_bytes() const {
  std::size_t total = 0;
  for (const Plane& plane : planes_) total += plane_bytes(plane);
  return total;
}

void Pool::describe(const std::string& name, std::vector<CellArray>& arrays) const {
  for (const Plane& plane : planes_) {
    const std::string full = plane.name.empty() ? name : name + "." + plane.name;
    arrays.push_back({full, name_of(plane.dtype), {n_kv_heads_, plane.width}});
  }
}

mx::array Pool::first_cells(std::size_t plane, Cell len) const {
  return mx::slice(planes_[plane].cells, mx::Shape{0, 0, 0, 0}, shape(planes_[plane], len));
}

void Pool::collect_pending(std::vector<mx::array>& pending) const {
  for (const Plane& plane : planes_) {
    if (plane.cells.has_primitive()) pending.push_back(plane.cells);
  }
}

void Pool::drop_pending() {
  for (Plane& plane : planes_) {
    // An evaluated array has no primitive any more; a write's first input is the array that it was to change.
    while (plane.cells.has_primitive()) plane.cells = mx::array(plane.cells.inputs().front());
  }
}

std::size_t Pool::bytes() const {
  std::size_t total = 0;
  for (const Plane& plane : planes_) {
    total += plane_bytes(plane) * static_cast<std::size_t>(cells_);
  }
  return total;
}

}  // namespace agentkv::mlx
