#include <vector>

#include "core/cell_pool.h"
#include "core/errors.h"
#include "cpp/check.h"

using namespace agentkv;

namespace {

std::vector<Cell> lowest(const CellPool& pool, std::size_t n) {
  std::vector<Cell> cells(n, -1);
  pool.lowest_free(cells);
  return cells;
}

void take_all(CellPool& pool) {
  for (const Cell cell : lowest(pool, static_cast<std::size_t>(pool.free()))) pool.take(cell);
}

void test_lowest_first_over_word_edges() {
  for (const Cell capacity : {1, 63, 64, 65, 128, 200}) {
    CellPool pool(capacity);
    take_all(pool);
    CHECK_EQ(pool.used(), capacity);
    CHECK_EQ(pool.window(), capacity);
    pool.release(capacity - 1, 1);
    CHECK_EQ(lowest(pool, 1), std::vector<Cell>{capacity - 1});
    CHECK_EQ(pool.window(), capacity - 1);
    if (capacity > 64) {
      pool.release(62, 3);
      CHECK_EQ(lowest(pool, 3), (std::vector<Cell>{62, 63, 64}));
    }
    pool.clear();
    CHECK_EQ(pool.free(), capacity);
    CHECK_EQ(pool.window(), 0);
    CHECK_EQ(lowest(pool, 1), std::vector<Cell>{0});
  }
}

void test_owner_counts() {
  CellPool pool(300);
  take_all(pool);
  pool.share(10, 200);
  CHECK_EQ(pool.shared(), 200);
  pool.share(10, 1);
  CHECK_EQ(pool.owners(10), 3);
  CHECK_EQ(pool.shared(), 200);
  pool.release(0, 110);  // 0..9 go free, 10 keeps two owners, 11..109 keep one
  CHECK_EQ(pool.used(), 290);
  CHECK_EQ(pool.shared(), 101);
  CHECK_EQ(pool.owners(10), 2);
  CHECK_EQ(lowest(pool, 10), (std::vector<Cell>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

void test_runs() {
  CellPool pool(200);
  CHECK_EQ(pool.find_run(200, 7, false), 0);
  CHECK_EQ(pool.find_run(201, 1, false), -1);
  take_all(pool);
  CHECK_EQ(pool.find_run(1, 1, true), -1);
  pool.release(10, 30);
  pool.release(60, 140);
  CHECK_EQ(pool.find_run(30, 1, false), 10);
  CHECK_EQ(pool.find_run(20, 16, false), 16);
  CHECK_EQ(pool.find_run(31, 1, false), 60);
  CHECK_EQ(pool.find_run(31, 64, false), 64);
  CHECK_EQ(pool.find_run(136, 64, false), 64);
  CHECK_EQ(pool.find_run(137, 64, false), -1);
  CHECK_EQ(pool.find_run(1, 2147483647, false), -1);
  pool.keep(40, 20);
  pool.release(40, 20);
  CHECK_EQ(pool.find_run(100, 1, false), 60);
  CHECK_EQ(pool.find_run(190, 10, true), 10);
  CHECK_EQ(pool.find_run(141, 1, false), -1);
}

void test_bad_capacity() {
  CHECK_THROWS(CellPool(0), InvalidRange, "capacity is 0");
  CHECK_THROWS(CellPool(-4), InvalidRange, "-4");
}

}  // namespace

int main() {
  test_lowest_first_over_word_edges();
  test_owner_counts();
  test_runs();
  test_bad_capacity();
}
