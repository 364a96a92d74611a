// Cells that are pages of a file: they are its bytes until they are written, and the file never changes.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "core/errors.h"
#include "cpp/check.h"
#include "cpu/kv_cache.h"
#include "cpu/row_array.h"
#include "fixture.h"

using namespace agentkv;
using namespace agentkv::cpu;
using namespace agentkv::cpu::testing;

namespace {

using Bytes = std::vector<std::byte>;

constexpr int kLanes = 3;
constexpr std::size_t kRow = 128;
constexpr Cell kCapacity = 1 << 16;
const std::size_t kPage = ReservedMemory::page_size();
const Cell kPerPage = static_cast<Cell>(kPage / kRow);

// Random bytes in a file without a name.
class File {
 public:
  explicit File(std::size_t size) : file_(std::tmpfile()), bytes_(size) {
    CHECK(file_ != nullptr);
    std::mt19937 random(7);
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(1 + random() % 255);
    CHECK_EQ(std::fwrite(bytes_.data(), 1, size, file_), size);
    std::fflush(file_);
  }
  ~File() { std::fclose(file_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fileno(file_); }
  const std::byte* at(std::int64_t offset) const { return bytes_.data() + offset; }
  bool unchanged() const {
    Bytes now(bytes_.size());
    CHECK_EQ(pread(fd(), now.data(), now.size(), 0), static_cast<ssize_t>(now.size()));
    return now == bytes_;
  }

 private:
  std::FILE* file_;
  Bytes bytes_;
};

// Row i of the file's lanes lies in cell first + i.
bool holds(const RowArray& rows, Cell first, Cell begin, Cell end, const std::byte* const* lanes) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const std::size_t bytes = static_cast<std::size_t>(end - begin) * kRow;
    if (std::memcmp(rows.row(lane, first + begin), lanes[lane] + static_cast<std::size_t>(begin) * kRow, bytes) != 0) {
      return false;
    }
  }
  return true;
}

struct Mapped {
  File file{64 * kPage};
  std::vector<std::int64_t> offsets;
  const std::byte* lanes[kLanes];

  explicit Mapped(std::int64_t shift = 0) {
    for (int lane = 0; lane < kLanes; ++lane) {
      offsets.push_back(static_cast<std::int64_t>(kPage) * (1 + 20 * lane) + shift);
      lanes[lane] = file.at(offsets.back());
    }
  }
  FileLanes view() const { return {file.fd(), offsets}; }
};

void test_whole_pages_are_mapped() {
  const Mapped mapped;
  RowArray rows(kLanes, kRow, kCapacity, 256);
  const Cell first = 4 * kPerPage, count = 10 * kPerPage + 3;
  rows.reserve(first + count);
  std::memset(rows.row(1, first - 1), 9, kRow);
  const std::size_t whole = rows.bytes();
  CHECK_EQ(rows.map(first, count, mapped.view()), 10 * kPerPage);
  CHECK(holds(rows, first, 0, count, mapped.lanes));
  CHECK_EQ(rows.mapped_bytes(), 10 * kPage * kLanes);
  CHECK_EQ(rows.bytes() + rows.mapped_bytes(), whole);
  CHECK(rows.row(1, first - 1)[kRow - 1] == std::byte{9});
  const std::byte* data = rows.data();
  rows.reserve(kCapacity);  // growing leaves them
  CHECK(rows.data() == data);
  CHECK(holds(rows, first, 0, count, mapped.lanes));
}

void test_written_pages_are_memory() {
  const Mapped mapped;
  RowArray rows(kLanes, kRow, kCapacity, 256), other(kLanes, kRow, kCapacity, 256);
  const Cell count = 10 * kPerPage;
  for (RowArray* each : {&rows, &other}) {
    each->reserve(count);
    CHECK_EQ(each->map(0, count, mapped.view()), count);
  }
  const Cell cells[] = {3, 2 * kPerPage, 2 * kPerPage + 1};
  for (int twice = 0; twice < 2; ++twice) {
    rows.will_write(cells);
    for (const Cell cell : cells) {
      for (int lane = 0; lane < kLanes; ++lane) std::memset(rows.row(lane, cell), 0, kRow);
    }
    CHECK_EQ(rows.mapped_bytes(), 8 * kPage * kLanes);
    CHECK(rows.bytes() >= 2 * kPage * kLanes);
  }
  CHECK(holds(rows, 0, 4, 2 * kPerPage, mapped.lanes));
  CHECK(holds(other, 0, 0, count, mapped.lanes));
  CHECK(mapped.file.unchanged());
  CHECK_EQ(rows.map(0, count, mapped.view()), count);  // once more over what was written
  CHECK(holds(rows, 0, 0, count, mapped.lanes));
  CHECK_EQ(rows.mapped_bytes(), 10 * kPage * kLanes);
}

void test_shrinking_lets_pages_go() {
  const Mapped mapped;
  RowArray rows(kLanes, kRow, kCapacity, 256);
  const Cell count = 10 * kPerPage;
  rows.reserve(count);
  rows.map(0, count, mapped.view());
  rows.shrink(4 * kPerPage);
  CHECK_EQ(rows.mapped_bytes(), 4 * kPage * kLanes);
  CHECK_EQ(rows.bytes(), 0u);
  CHECK(holds(rows, 0, 0, 4 * kPerPage, mapped.lanes));
  rows.reserve(count);
  for (int lane = 0; lane < kLanes; ++lane) {
    CHECK(rows.row(lane, count - 1)[0] == std::byte{0});
    std::memset(rows.row(lane, 4 * kPerPage), 1, 6 * kPage);
  }
  CHECK_EQ(rows.mapped_bytes(), 4 * kPage * kLanes);
  CHECK(mapped.file.unchanged());
}

// Neither in memory nor in the file may a row begin in the middle of a page.
void test_what_does_not_align_is_copied() {
  const Cell count = 10 * kPerPage;
  for (const bool in_file : {false, true}) {
    const Mapped mapped(in_file ? 64 : 0);
    RowArray rows(kLanes, kRow, kCapacity, 256);
    const Cell first = in_file ? 0 : 1;
    rows.reserve(first + count);
    CHECK_EQ(rows.map(first, count, mapped.view()), 0);
    CHECK_EQ(rows.mapped_bytes(), 0u);
    CHECK(holds(rows, first, 0, count, mapped.lanes));
  }
  const Mapped mapped;
  RowArray heap(kLanes, kRow, 100, 16);
  heap.reserve(100);
  CHECK_EQ(heap.map(0, 100, mapped.view()), 0);
  CHECK(holds(heap, 0, 0, 100, mapped.lanes));
  RowArray rows(kLanes, kRow, kCapacity, 256);
  rows.reserve(kPerPage);
  CHECK_EQ(rows.map(0, kPerPage - 1, mapped.view()), 0);  // not a page
  CHECK(holds(rows, 0, 0, kPerPage - 1, mapped.lanes));
}

// This process's memory can be read as a file, and not be mapped as one.
void test_refused_mappings_are_copied() {
#ifdef __linux__
  const Mapped mapped;
  const int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
  CHECK(memory >= 0);
  Bytes source(4 * kPage + kPage, std::byte{5});
  std::vector<std::int64_t> offsets;
  const auto address = reinterpret_cast<std::int64_t>(source.data());
  for (int lane = 0; lane < kLanes; ++lane) {
    offsets.push_back((address + static_cast<std::int64_t>(kPage) - 1) / static_cast<std::int64_t>(kPage) *
                      static_cast<std::int64_t>(kPage));
  }
  RowArray rows(kLanes, kRow, kCapacity, 256);
  rows.reserve(10 * kPerPage);
  CHECK_EQ(rows.map(0, 10 * kPerPage, mapped.view()), 10 * kPerPage);
  CHECK_EQ(rows.map(0, 4 * kPerPage, {memory, offsets}), 0);
  for (int lane = 0; lane < kLanes; ++lane) {
    CHECK(std::memcmp(rows.row(lane, 0), reinterpret_cast<const void*>(offsets[0]), 4 * kPage) == 0);
  }
  CHECK_EQ(rows.mapped_bytes(), 6 * kPage * kLanes);
  CHECK(holds(rows, 0, 4 * kPerPage, 10 * kPerPage, mapped.lanes));
  close(memory);
#endif
}

CacheConfig config(const char* dtype) {
  CacheConfig c;
  c.n_layers = 2;
  c.n_kv_heads = 2;
  c.head_dim = 32;
  c.capacity = kCapacity;
  c.kv_dtype = dtype;
  return c;
}

StepPlan writes(const std::vector<Cell>& cells) {
  PlanMaker maker;
  maker.sequence(cells, static_cast<int>(cells.size()));
  return maker.done();
}

std::vector<Cell> counted(Cell first, Cell n) {
  std::vector<Cell> cells;
  for (Cell i = 0; i < n; ++i) cells.push_back(first + i);
  return cells;
}

Bytes read(const KvCache& cache, const std::vector<Cell>& cells) {
  Bytes bytes(cells.size() * cache.cell_bytes());
  cache.read_cells(cells, bytes);
  return bytes;
}

// Whatever can write cells, over all dtypes.
void test_caches() {
  for (const char* dtype : {"fp32", "fp16", "bf16", "int8", "int8/int4", "int4"}) {
    const bool scaled = dtype[0] == 'i';
    const std::size_t lanes = (scaled ? 2 : 1) * 2 * 2 * 2;
    const std::size_t stride = 1024 * 32 * 4;
    const File file(lanes * stride);
    std::vector<std::int64_t> offsets;
    for (std::size_t lane = 0; lane < lanes; ++lane) offsets.push_back(static_cast<std::int64_t>(lane * stride));
    auto planner = std::make_shared<FixedPlan>();
    KvCache cache(config(dtype), planner, nullptr), copy(config(dtype), planner, nullptr);
    const Cell first = 512, count = 1000;
    const Cell mapped = cache.map_cells(first, count, {file.fd(), offsets});
    CHECK(mapped > count - 512 && mapped <= count);
    CHECK(cache.mapped_bytes() > 0);
    CHECK(cache.allocated_cells() >= first + count);
    const std::vector<Cell> cells = counted(first, count);
    const Bytes whole = read(cache, cells);
    CHECK(std::memcmp(whole.data(), file.at(0), 16) == 0);
    CHECK_EQ(copy.map_cells(first + 1, count, {file.fd(), offsets}), 0);
    CHECK(read(copy, counted(first + 1, count)) == whole);

    std::size_t before = cache.mapped_bytes();
    const std::size_t all = cache.bytes() + before;
    std::mt19937 random(1);
    const Tensor k(2, 1, 32, random), v(2, 1, 32, random);
    planner->current = writes({first});
    const std::vector<std::int64_t> positions(1);
    for (int layer = 0; layer < 2; ++layer) cache.update_and_fetch(layer, positions, k.view(), v.view());
    CHECK(cache.mapped_bytes() < before);
    before = cache.mapped_bytes();
    const Cell src[] = {first + 1}, dst[] = {first + 300};
    cache.move_cells(src, dst, 1);
    CHECK(cache.mapped_bytes() < before);
    before = cache.mapped_bytes();
    const Cell last[] = {first + 700};
    cache.write_cells(last, read(cache, {first}));
    CHECK(cache.mapped_bytes() < before);
    CHECK_EQ(cache.bytes() + cache.mapped_bytes(), all);
    CHECK(read(cache, {first + 300}) == read(cache, {first + 1}));
    CHECK(read(cache, {first + 700}) == read(cache, {first}));
    CHECK(file.unchanged());
    CHECK(read(copy, counted(first + 1, count)) == whole);
  }
}

void test_refusals_change_nothing() {
  auto planner = std::make_shared<FixedPlan>();
  KvCache cache(config("fp16"), planner, nullptr);
  const File file(8 * kPage);
  std::vector<std::int64_t> offsets(8, 0);
  CHECK_THROWS(cache.map_cells(-1, 4, {file.fd(), offsets}), InvalidRange, "[-1, 3)");
  CHECK_THROWS(cache.map_cells(0, 0, {file.fd(), offsets}), InvalidRange);
  CHECK_THROWS(cache.map_cells(kCapacity - 3, 4, {file.fd(), offsets}), InvalidRange, "65537");
  CHECK_THROWS(cache.map_cells(0, 4, {file.fd(), std::span(offsets).first(7)}), InvalidRange, "7 lanes", "8");
  CHECK_THROWS(cache.map_cells(0, 4, {-1, offsets}), InvalidRange, "-1");
  CHECK_THROWS(cache.map_cells(0, kCapacity, {file.fd(), offsets}), InvalidRange, "of a file of");
  for (const std::int64_t bad : {std::int64_t{-1}, static_cast<std::int64_t>(8 * kPage) - 255, INT64_MAX}) {
    offsets[5] = bad;
    CHECK_THROWS(cache.map_cells(0, 4, {file.fd(), offsets}), InvalidRange, "256 bytes at byte");
  }
  CHECK_EQ(cache.bytes(), 0u);
  CHECK_EQ(cache.allocated_cells(), 0);
}

}  // namespace

int main() {
  test_whole_pages_are_mapped();
  test_written_pages_are_memory();
  test_shrinking_lets_pages_go();
  test_what_does_not_align_is_copied();
  test_refused_mappings_are_copied();
  test_caches();
  test_refusals_change_nothing();
}
