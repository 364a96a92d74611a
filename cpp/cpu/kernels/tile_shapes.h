// The shapes of AMX's tiles: sixteen rows by sixteen outputs to a tile of integers.
#pragma once

#include "cpu/kernels/simd.h"

namespace agentkv::cpu {
namespace {

// What was stored at an address is in memory when tiles are loaded from it: GCC's intrinsics do not say that they read.
AGENTKV_INLINE void settle_stores(const void* at) { __asm__ volatile("" : : "r"(at) : "memory"); }

// The shapes of the tiles of this thread, until the end of the scope. Outputs: tiles 0 to 3; rows of x: 4 and 5;
// weights: 6 and 7. A tile of weights has `inputs` of them.
class TileShapes {
 public:
  explicit TileShapes(int inputs) : inputs_(inputs) {}
  ~TileShapes() { _tile_release(); }
  TileShapes(const TileShapes&) = delete;
  TileShapes& operator=(const TileShapes&) = delete;

  void set(int rows) {
    if (rows == rows_) return;
    rows_ = rows;
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    } config;
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = static_cast<std::uint16_t>(tile == 4 || tile == 5 ? inputs_ : 64);
      config.rows[tile] = static_cast<std::uint8_t>(tile >= 6 ? inputs_ / 4 : rows);
    }
    settle_stores(&config);
    _tile_loadconfig(&config);
  }

 private:
  const int inputs_;
  int rows_ = 0;
};

// To how many rows the tiles of a block of rows are set.
AGENTKV_INLINE int tile_rows(int rows) { return rows > 8 ? 16 : rows > 4 ? 8 : 4; }

}  // namespace
}  // namespace agentkv::cpu
