// One layer's K or V as MLX arrays: cells along axis 2, growing by doubling.
#pragma once

#include <mlx/array.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/byte_layer.h"
#include "core/types.h"
#include "mlx/cells_view.h"

namespace agentkv::mlx {

// A pool is one array or several side by side ("planes": the codes, scales and biases of quantised rows), all
// [1, n_kv_heads, cells, width]. Writes are lazy and in place: MLX gives a buffer on when its array has one holder, so
// a view of the pool that lives across a write costs a copy of the pool. Everything here runs on the owner.
class Pool {
 public:
  virtual ~Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Makes room for `cells` cells, keeping what is there: doubles from min_chunk, never beyond capacity. Throws
  // CacheFull when cells > capacity; unchanged then.
  void ensure(Cell cells, Cell min_chunk, Cell capacity);
  // rows: [1, n_kv_heads, T, head_dim], any floating dtype. Row i goes to cells[i], no cell twice.
  void write(const mx::array& rows, std::span<const Cell> cells);
  // The same where they follow each other: they go to the cells [first, first + T).
  void write_run(const mx::array& rows, Cell first);
  // Row i goes to cells[i], int32 [T]; no cell twice.
  void scatter_rows(const mx::array& rows, const mx::array& cells);
  // Cell src[i] is copied to dst[i] as if all were read before any is written; int32 [n]. The cells are allocated.
  void gather_into(const mx::array& src, const mx::array& dst);
  virtual CellsView read(Cell len) const = 0;

  // The planes of cells[i], int32 [n], one after another, to out + i * stride; `restore` is the way back.
  void read_bytes(const mx::array& cells, std::byte* out, std::size_t stride) const;
  void restore(const mx::array& cells, const std::byte* in, std::size_t stride);
  std::size_t cell_bytes() const;
  // Adds the planes of a cell, in this order.
  void describe(const std::string& name, std::vector<CellArray>& arrays) const;

  // Adds the arrays that are not evaluated yet.
  void collect_pending(std::vector<mx::array>& pending) const;
  // Takes back the writes that are not evaluated.
  void drop_pending();

  Cell cells() const { return cells_; }
  std::size_t bytes() const;

 protected:
  struct Plane {
    std::string name;  // empty for the only one
    int width;
    mx::Dtype dtype;
    mx::array cells;
  };

  explicit Pool(int n_kv_heads) : n_kv_heads_(n_kv_heads) {}
  void add_plane(std::string name, int width, mx::Dtype dtype);
  mx::array first_cells(std::size_t plane, Cell len) const;

 private:
  // Rows as the planes keep them, one array [1, n_kv_heads, T, width] for each.
  virtual std::vector<mx::array> encode(const mx::array& rows) const = 0;

  mx::Shape shape(const Plane& plane, Cell cells) const { return {1, n_kv_heads_, cells, plane.width}; }

  // Of one cell.
  std::size_t plane_bytes(const Plane& plane) const {
    return static_cast<std::size_t>(n_kv_heads_) * static_cast<std::size_t>(plane.width) * mx::size_of(plane.dtype);
  }

  int n_kv_heads_;
  Cell cells_ = 0;
  std::vector<Plane> planes_;
};

}  // namespace agentkv::mlx
