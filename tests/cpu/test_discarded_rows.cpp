// Cells without rows in the layers of some groups: their memory is given back, and what they have left stays.
#include <memory>
#include <random>
#include <vector>

#include "core/errors.h"
#include "cpp/check.h"
#include "cpu/kv_cache.h"
#include "fixture.h"

using namespace agentkv;
using namespace agentkv::cpu;
using namespace agentkv::cpu::testing;

namespace {

using Bytes = std::vector<std::byte>;

constexpr Cell kCells = 2048;
constexpr std::size_t kLayers = 3;  // with a window of 8, one of 32, and none

std::vector<Cell> counted(Cell first, Cell count) {
  std::vector<Cell> cells;
  for (Cell i = 0; i < count; ++i) cells.push_back(first + i);
  return cells;
}

KvCache make_cache(const char* dtype, std::vector<Pos> windows = {8, 32, 0}) {
  CacheConfig config{{.capacity = 2 * kCells, .kv_dtype = dtype, .min_chunk = 16}, kLayers, 2, 64};
  config.windows = std::move(windows);
  return KvCache(config, std::make_shared<FixedPlan>(), nullptr);
}

Bytes read(const KvCache& cache, const std::vector<Cell>& cells) {
  Bytes bytes(cells.size() * cache.cell_bytes());
  cache.read_cells(cells, bytes);
  return bytes;
}

Bytes random_bytes(std::size_t size) {
  std::mt19937 random(3);
  Bytes bytes(size);
  // Of no exponent that makes a float an infinity or none.
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 0x3c);
  return bytes;
}

// The bytes of cells in order, without those of the first layers of each as `lacks` says.
Bytes without(Bytes bytes, const std::vector<int>& lacks) {
  const std::size_t cell = bytes.size() / lacks.size();
  for (std::size_t i = 0; i < lacks.size(); ++i) {
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(i * cell),
                cell / kLayers * static_cast<std::size_t>(lacks[i]), std::byte{0});
  }
  return bytes;
}

void test_memory_and_bytes() {
  for (const char* dtype : {"fp32", "fp16", "bf16", "int8", "int8/int4", "int4"}) {
    KvCache cache = make_cache(dtype);
    const std::vector<Cell> cells = counted(0, kCells);
    const Bytes whole = random_bytes(cells.size() * cache.cell_bytes());
    cache.write_cells(cells, whole);
    const std::size_t all = cache.bytes(), layer = all / kLayers;
    std::vector<int> lacks(kCells);

    cache.discard(counted(0, 1024), 1);
    std::fill_n(lacks.begin(), 1024, 1);
    CHECK(read(cache, cells) == without(whole, lacks));
    CHECK(cache.bytes() < all - layer * 4 / 10);
    CHECK(cache.bytes() > all - layer * 6 / 10);
    cache.discard(counted(0, 1024), 1);                                                 // nothing more to give
    for (Cell first = 0; first < 512; first += 8) cache.discard(counted(first, 8), 2);  // less than a page each
    std::fill_n(lacks.begin(), 512, 2);
    CHECK(read(cache, cells) == without(whole, lacks));
    CHECK(cache.bytes() < all - layer * 6 / 10);

    std::vector<Cell> src = counted(500, 100), dst = counted(1500, 100);
    cache.move_cells(src.data(), dst.data(), src.size());
    Bytes expected = without(whole, lacks);
    const std::size_t cell = cache.cell_bytes();
    std::copy_n(expected.begin() + static_cast<std::ptrdiff_t>(500 * cell), 100 * cell,
                expected.begin() + static_cast<std::ptrdiff_t>(1500 * cell));
    CHECK(read(cache, cells) == expected);

    cache.write_cells(cells, whole);  // they are whole again
    CHECK(read(cache, cells) == whole);
    CHECK_EQ(cache.bytes(), all);
    CHECK_THROWS(cache.discard({{2 * kCells}}, 1), InvalidRange);
  }
}

// Cells that are quantised and lack layers, in whichever order that came.
void test_with_codes() {
  KvCache quantized_first = make_cache("fp16"), discarded_first = make_cache("fp16");
  const std::vector<Cell> cells = counted(0, kCells), old = counted(0, 1024);
  const Bytes whole = random_bytes(cells.size() * quantized_first.cell_bytes());
  for (KvCache* cache : {&quantized_first, &discarded_first}) cache->write_cells(cells, whole);
  const std::size_t all = quantized_first.bytes();
  quantized_first.to_quantized(old);
  const std::size_t quantized = quantized_first.bytes();
  CHECK(quantized < all);
  quantized_first.discard(old, 2);
  discarded_first.discard(old, 2);
  discarded_first.to_quantized(old);
  CHECK(read(quantized_first, cells) == read(discarded_first, cells));
  for (const KvCache* cache : {&quantized_first, &discarded_first}) {
    CHECK(cache->bytes() < quantized - (quantized - all / 2) / kLayers);
  }
  const std::vector<Cell> src = counted(1000, 40), dst = counted(kCells, 40);
  for (KvCache* cache : {&quantized_first, &discarded_first}) {
    cache->write_cells(counted(kCells, 64), Bytes(64 * cache->cell_bytes()));
    cache->move_cells(src.data(), dst.data(), src.size());
    CHECK(read(*cache, dst) == read(*cache, src));
  }
}

void test_layers_of_no_window_keep_their_rows() {
  for (const auto& windows : {std::vector<Pos>{}, std::vector<Pos>{0, 0, 0}}) {
    KvCache cache = make_cache("fp16", windows);
    const std::vector<Cell> cells = counted(0, 512);
    const Bytes whole = random_bytes(cells.size() * cache.cell_bytes());
    cache.write_cells(cells, whole);
    const std::size_t all = cache.bytes();
    cache.discard(cells, 3);
    CHECK(read(cache, cells) == whole);
    CHECK_EQ(cache.bytes(), all);
  }
  CHECK_THROWS(make_cache("fp16", {8}), InvalidTensor, "1 windows for 3 layers");
}

}  // namespace

int main() {
  test_memory_and_bytes();
  test_with_codes();
  test_layers_of_no_window_keep_their_rows();
}
