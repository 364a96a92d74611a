// Pools: what is stored where, growth, and writes in place.
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "arrays.h"
#include "core/errors.h"
#include "cpp/check.h"
#include "mlx/fp_pool.h"
#include "mlx/owner.h"
#include "mlx/quant_pool.h"

using namespace agentkv;
using namespace agentkv::mlx;
using namespace agentkv::mlx::testing;

namespace {

constexpr int kHeads = 2, kDim = 64;

mx::array rows_of(int tokens, unsigned seed) { return random_array({1, kHeads, tokens, kDim}, seed); }

mx::array indices(const std::vector<int>& cells) {
  return mx::array(cells.begin(), {static_cast<int>(cells.size())}, mx::int32);
}

void settle(Pool& pool) {
  std::vector<mx::array> pending;
  pool.collect_pending(pending);
  mx::eval(pending);
}

// One of each kind, and what it must keep of a row: arrays as its view names them.
struct Kind {
  std::unique_ptr<Pool> pool;
  int bits;  // 0: floating
  mx::Dtype dtype;

  std::vector<mx::array> kept(const mx::array& row) const {
    if (bits == 0) return {mx::astype(row, dtype)};
    return mx::quantize(mx::astype(row, mx::float16), 64, bits);
  }
  std::vector<mx::array> stored(Cell cell) const {
    const CellsView view = pool->read(pool->cells());
    std::vector<mx::array> planes = {cells_of(view.values, cell, 1)};
    if (view.affine) {
      planes.push_back(cells_of(view.affine->scales, cell, 1));
      planes.push_back(cells_of(view.affine->biases, cell, 1));
    }
    return planes;
  }
  void check(Cell cell, const mx::array& row) const {
    const auto have = stored(cell), want = kept(row);
    CHECK_EQ(have.size(), want.size());
    for (std::size_t i = 0; i < have.size(); ++i) CHECK(same(have[i], want[i]));
  }
  void check_empty(Cell cell) const {
    const mx::array row = cells_of(pool->read(pool->cells()).dense(mx::float32), cell, 1);
    CHECK(same(row, mx::zeros(row.shape())));
  }
  std::size_t row_bytes() const {
    return bits == 0 ? kDim * mx::size_of(dtype)
                     : kDim * static_cast<std::size_t>(bits) / 8 + 2 * sizeof(std::uint16_t);
  }
};

std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const mx::Dtype dtype : {mx::float32, mx::float16, mx::bfloat16}) {
    all.push_back({std::make_unique<FPPool>(kHeads, kDim, dtype), 0, dtype});
  }
  for (const int bits : {8, 4}) all.push_back({std::make_unique<QuantPool>(kHeads, kDim, bits), bits, mx::uint32});
  return all;
}

// Every write leaves exactly what the row alone gives, however it came to its cell.
void test_writes() {
  for (const Kind& kind : kinds()) {
    Pool& pool = *kind.pool;
    CHECK_EQ(pool.bytes(), 0u);
    pool.ensure(5, 4, 100);
    CHECK_EQ(pool.cells(), 8);
    CHECK_EQ(pool.bytes(), 8 * kHeads * kind.row_bytes());
    const mx::array run = rows_of(3, 1), scattered = rows_of(4, 2), all = rows_of(8, 3);
    pool.write_run(run, 2);
    pool.scatter_rows(scattered, indices({7, 0, 6, 5}));
    settle(pool);
    for (int i = 0; i < 3; ++i) kind.check(2 + i, cells_of(run, i, 1));
    for (const auto& [cell, row] : std::vector<std::pair<int, int>>{{7, 0}, {0, 1}, {6, 2}, {5, 3}}) {
      kind.check(cell, cells_of(scattered, row, 1));
    }
    kind.check_empty(1);

    pool.gather_into(indices({2, 7, 3}), indices({7, 2, 4}));  // a swap, and a copy beside it
    settle(pool);
    kind.check(7, cells_of(run, 0, 1));
    kind.check(2, cells_of(scattered, 0, 1));
    kind.check(4, cells_of(run, 1, 1));
    kind.check(3, cells_of(run, 1, 1));

    pool.ensure(60, 4, 100);
    CHECK_EQ(pool.cells(), 64);
    kind.check(7, cells_of(run, 0, 1));
    kind.check_empty(63);
    CHECK_THROWS(pool.ensure(101, 4, 100), CacheFull, "101", "100");
    pool.ensure(65, 4, 100);
    CHECK_EQ(pool.cells(), 100);
    CHECK_EQ(pool.bytes(), 100 * kHeads * kind.row_bytes());
    kind.check(0, cells_of(scattered, 1, 1));
  }
  for (const Kind& kind : kinds()) {  // rows that fill the pool are copied too
    const mx::array all = rows_of(8, 3);
    kind.pool->ensure(8, 8, 8);
    kind.pool->write_run(all, 0);
    kind.pool->write_run(rows_of(1, 4), 3);
    settle(*kind.pool);
    kind.check(2, cells_of(all, 2, 1));
    kind.check(3, rows_of(1, 4));
    CHECK(same(all, rows_of(8, 3)));
  }
}

// A write that cannot be evaluated leaves what the pool held, also where it was to fill all of it.
void test_failed_writes() {
  for (const Kind& kind : kinds()) {
    Pool& pool = *kind.pool;
    pool.ensure(8, 8, 8);
    const mx::array all = rows_of(8, 3);
    pool.write_run(all, 0);
    settle(pool);
    const std::vector<mx::array> broken = {failing(all), failing(cells_of(all, 0, 2))};
    const std::vector<std::function<void()>> writes = {
        [&] { pool.write_run(broken[0], 0); },
        [&] { pool.write_run(broken[1], 5); },
        [&] { pool.scatter_rows(broken[1], indices({6, 2})); },
    };
    for (const auto& write : writes) {
      write();
      CHECK_THROWS(settle(pool), std::runtime_error, "no memory left");
      pool.drop_pending();
      for (int i = 0; i < 8; ++i) kind.check(i, cells_of(all, i, 1));
    }
  }
}

void test_rounding() {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> values(kHeads * kDim, 1.0f);
  const std::vector<float> odd = {1e9f, -1e9f, inf, -inf, 65504.0f, 1.0f + 0x1p-11f, 1.0f + 0x1.8p-10f, NAN};
  const std::vector<float> want = {65504.0f, -65504.0f, 65504.0f, -65504.0f, 65504.0f, 1.0f, 1.0f + 0x1p-9f, NAN};
  std::copy(odd.begin(), odd.end(), values.begin());
  FPPool pool(kHeads, kDim, mx::float16);
  pool.ensure(2, 2, 2);
  pool.write_run(mx::array(values.begin(), {1, kHeads, 1, kDim}, mx::float32), 0);
  settle(pool);
  mx::array kept = mx::contiguous(pool.read(1).dense(mx::float32));
  kept.eval();
  for (std::size_t i = 0; i < want.size(); ++i) {
    const float have = kept.data<float>()[i];
    CHECK(have == want[i] || (std::isnan(have) && std::isnan(want[i])));
  }
}

void test_quantised_shapes() {
  CHECK_THROWS(QuantPool(2, 80, 4), InvalidTensor, "80", "32");
  QuantPool pool(2, 96, 4);  // groups of 32
  pool.ensure(3, 3, 3);
  CHECK_EQ(pool.bytes(), std::size_t{3 * 2 * (96 / 2 + 3 * 2 * 2)});
  const mx::array rows = random_array({1, 2, 2, 96}, 5);
  pool.write_run(rows, 1);
  settle(pool);
  const CellsView view = pool.read(3);
  CHECK_EQ(view.affine->group_size, 32);
  CHECK(largest_difference(cells_of(view.dense(mx::float32), 1, 2), rows) < 0.25f);
}

// What a write takes beyond the pool does not depend on the pool, until something else holds a view of it.
void test_writes_are_in_place() {
  constexpr Cell cells = 32768;
  for (const Kind& kind : kinds()) {
    Pool& pool = *kind.pool;
    pool.ensure(cells, cells, cells);
    const mx::array one = rows_of(1, 6), three = rows_of(3, 7);
    const mx::array apart = indices({9, 30000, 77}), others = indices({5, 6, 7});
    mx::eval(one, three, apart, others);
    const auto run = [&] { pool.write_run(one, cells - 1), settle(pool); };
    const auto scatter = [&] { pool.scatter_rows(three, apart), settle(pool); };
    const auto move = [&] { pool.gather_into(apart, others), settle(pool); };
    run(), scatter(), move();
    CHECK(peak_of(run) < 32768);
    CHECK(peak_of(scatter) < 32768);
    CHECK(peak_of(move) < 32768);
    std::size_t held = 0;
    {
      CellsView view = pool.read(cells - 1);
      std::vector<mx::array> planes = {view.values};
      if (view.affine) planes.insert(planes.end(), {view.affine->scales, view.affine->biases});
      mx::eval(planes);
      held = peak_of(run);
    }
    CHECK(held >= pool.bytes());
    CHECK(peak_of(run) < 32768);  // the view is gone
  }
}

// While it grows, a pool is never held more than once beside its new self, plane by plane.
void test_growth_peak() {
  for (const Kind& kind : kinds()) {
    Pool& pool = *kind.pool;
    pool.ensure(4096, 4096, 8192);
    const std::size_t before = pool.bytes();
    const std::size_t peak = peak_of([&] { pool.ensure(8192, 4096, 8192); });
    CHECK(peak < pool.bytes() + 4096);  // the new ones; the old one is dropped before the next plane grows
    CHECK_EQ(pool.bytes(), 2 * before);
  }
}

}  // namespace

int main() {
  on_owner([] {
    test_writes();
    test_failed_writes();
    test_rounding();
    test_quantised_shapes();
    test_writes_are_in_place();
    test_growth_peak();
  });
}
