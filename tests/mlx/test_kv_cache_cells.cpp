// Whole cells of layers that differ in shape: stored, brought back to others, moved.
#include <cstddef>
#include <memory>
#include <numeric>
#include <vector>

#include "core/errors.h"
#include "mlx/owner.h"
#include "rig.h"

using namespace agentkv;
using namespace agentkv::mlx;
using namespace agentkv::mlx::testing;

namespace {

constexpr int kCells = 20;

CacheConfig of_two_shapes(const char* dtype) {
  CacheConfig c = config(dtype);
  const bool codes = c.kv_dtype.starts_with("int");
  c.shapes = {{2, 32, 64}, {1, 96, 64, codes ? Kept::KeysAndValues : Kept::Latent}};
  return c;
}

std::vector<Cell> cells_from(Cell first) {
  std::vector<Cell> cells(kCells);
  std::iota(cells.begin(), cells.end(), first);
  return cells;
}

std::vector<std::byte> bytes_of(const KvCache& cache, Cell first) {
  std::vector<std::byte> bytes(kCells * cache.cell_bytes());
  cache.read_cells(cells_from(first), bytes);
  return bytes;
}

void test_arrays_say_what_the_bytes_are() {
  for (const char* dtype : kDtypes) {
    const Rig rig(of_two_shapes(dtype));
    std::size_t total = 0;
    for (const CellArray& array : rig.cache.cell_arrays()) {
      const std::size_t number = array.dtype == "F16" || array.dtype == "BF16" ? 2 : 4;
      total += static_cast<std::size_t>(array.shape[0] * array.shape[1]) * number;
    }
    CHECK_EQ(total, rig.cache.cell_bytes());
  }
}

void test_cells_come_back_as_they_were() {
  for (const char* dtype : kDtypes) {
    Rig rig(of_two_shapes(dtype));
    rig.write(kCells);
    const auto bytes = bytes_of(rig.cache, 0);
    KvCache other(of_two_shapes(dtype), std::make_shared<Cells>(256));
    other.write_cells(cells_from(7), bytes);
    CHECK(bytes_of(other, 7) == bytes);
    CHECK(bytes_of(other, 0) != bytes);
    CHECK_THROWS(other.write_cells(cells_from(0), {bytes.data(), bytes.size() - 1}), InvalidRange, "20 cells");
  }
}

void test_moved_cells_are_the_same() {
  for (const char* dtype : kDtypes) {
    Rig rig(of_two_shapes(dtype));
    rig.write(kCells);
    rig.write(kCells);
    const auto bytes = bytes_of(rig.cache, kCells);
    const auto from = cells_from(kCells), to = cells_from(3);
    rig.cache.move_cells(from.data(), to.data(), from.size());
    CHECK(bytes_of(rig.cache, 3) == bytes);
  }
}

}  // namespace

int main() {
  on_owner([] {
    test_arrays_say_what_the_bytes_are();
    test_cells_come_back_as_they_were();
    test_moved_cells_are_the_same();
  });
}
