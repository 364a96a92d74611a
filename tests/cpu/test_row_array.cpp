// Rows in reserved addresses: memory follows what is used, nothing moves, refusals change nothing.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include "core/errors.h"
#include "cpp/check.h"
#include "cpu/row_array.h"

using namespace agentkv;
using namespace agentkv::cpu;

namespace {

constexpr int kLanes = 3;
constexpr std::size_t kRow = 128;
constexpr Cell kCapacity = 1 << 18;
constexpr Cell kMost = 2147483647;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true, kFewAddresses = false;  // which needs addresses and memory of its own
#elif defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true, kFewAddresses = true;  // which needs four times as many, and leaves few
#else
constexpr bool kSanitized = false, kFewAddresses = false;
#endif

std::size_t resident() {
  long pages = 0;
#ifdef __linux__
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  CHECK(file != nullptr);
  CHECK_EQ(std::fscanf(file, "%*d %ld", &pages), 1);
  std::fclose(file);
  if (kFewAddresses) pages = 0;
#endif
  return static_cast<std::size_t>(pages) * ReservedMemory::page_size();
}

void fill(RowArray& rows, Cell begin, Cell end) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (Cell cell = begin; cell < end; ++cell) std::memset(rows.row(lane, cell), 1 + (cell + lane) % 250, kRow);
  }
}

bool filled(const RowArray& rows, Cell begin, Cell end) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (Cell cell = begin; cell < end; ++cell) {
      for (std::size_t i = 0; i < kRow; ++i) {
        if (rows.row(lane, cell)[i] != static_cast<std::byte>(1 + (cell + lane) % 250)) return false;
      }
    }
  }
  return true;
}

// In a process of its own, as limits and failures cannot be taken back.
void in_child(const std::function<void()>& body) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 0);
}

void limit(int what, rlim_t bytes) {
  rlimit value{};
  getrlimit(static_cast<__rlimit_resource_t>(what), &value);
  value.rlim_cur = bytes;
  CHECK_EQ(setrlimit(static_cast<__rlimit_resource_t>(what), &value), 0);
}

// qemu-user takes limits of memory and does not keep them; of what is reserved it has a table of all pages.
bool is_emulated() {
  constexpr rlim_t kAny = rlim_t{1} << 40;
  rlimit before{}, now{};
  getrlimit(RLIMIT_DATA, &before);
  limit(RLIMIT_DATA, kAny < before.rlim_max ? kAny : before.rlim_max);
  getrlimit(RLIMIT_DATA, &now);
  limit(RLIMIT_DATA, before.rlim_cur);
  return now.rlim_cur == before.rlim_cur;
}
const bool kEmulated = is_emulated();

void test_growth() {
  RowArray rows(kLanes, kRow, kCapacity, 256);
  CHECK_EQ(rows.cells(), 0);
  CHECK_EQ(rows.bytes(), 0u);
  const std::byte* data = rows.data();
  Cell held = 0;
  for (Cell cells = 1; cells <= kCapacity; cells = cells < 5000 ? cells + 1 : cells + cells / 3) {
    rows.reserve(cells);
    CHECK(rows.cells() >= cells);
    CHECK(rows.data() == data);  // nothing moves
    CHECK_EQ(rows.bytes(), static_cast<std::size_t>(rows.cells()) * kRow * kLanes);
    const Cell page = static_cast<Cell>(ReservedMemory::page_size() / kRow);
    CHECK(rows.cells() < cells + cells / 32 + page);
    fill(rows, held, rows.cells());
    held = rows.cells();
  }
  rows.reserve(kCapacity);
  CHECK_EQ(rows.cells(), kCapacity);
  CHECK(filled(rows, 0, held));
  CHECK_THROWS(rows.reserve(kCapacity + 1), CacheFull, "262145", "262144");
  CHECK_EQ(rows.cells(), kCapacity);
}

void test_memory_follows() {
  RowArray rows(kLanes, kRow, kCapacity, 256);
  const std::size_t before = resident(), slack = std::size_t{2} << 20;
  CHECK(!resident() || resident() < before + slack);
  rows.reserve(kCapacity);
  CHECK(!resident() || resident() < before + slack);  // committed, not touched
  fill(rows, 0, kCapacity);
  const std::size_t full = std::size_t{kCapacity} * kRow * kLanes;
  CHECK(!resident() || resident() > before + full - slack);
  for (const Cell cells : {200000, 70001, 4096, 33, 0}) {
    rows.shrink(cells);
    CHECK(rows.cells() >= cells);
    CHECK(rows.bytes() <= (static_cast<std::size_t>(cells) * kRow + ReservedMemory::page_size()) * kLanes);
    CHECK(!resident() || resident() < before + rows.bytes() + slack);
    CHECK(filled(rows, 0, cells));
  }
  rows.reserve(1000);
  for (int lane = 0; lane < kLanes; ++lane) CHECK(rows.row(lane, 999)[kRow - 1] == std::byte{0});
  fill(rows, 0, 1000);
  CHECK(filled(rows, 0, 1000));
}

// What may be read past the last row, by whole vectors, is there.
void test_slack() {
  for (const Cell capacity : {40, 1000, 100000}) {
    RowArray rows(kLanes, kRow, capacity, 16);
    for (const Cell cells : {capacity / 2, capacity}) {
      rows.reserve(cells);
      volatile std::byte last = *(rows.row(kLanes - 1, rows.cells() - 1) + kRow + 63);
      (void)last;
    }
  }
}

void test_small_arrays_double() {
  RowArray rows(kLanes, kRow, 100, 16);
  std::vector<Cell> sizes;
  for (Cell cells = 10; cells <= 100; cells += 10) {
    const Cell held = rows.cells();
    rows.reserve(cells);
    CHECK(filled(rows, 0, held));
    fill(rows, held, rows.cells());
    sizes.push_back(rows.cells());
    CHECK_EQ(rows.bytes(), static_cast<std::size_t>(rows.cells()) * kRow * kLanes);
  }
  CHECK(sizes == (std::vector<Cell>{16, 32, 32, 64, 64, 64, 100, 100, 100, 100}));
  rows.shrink(70);
  CHECK_EQ(rows.cells(), 100);  // 128 would be the next one up
  rows.shrink(33);
  CHECK_EQ(rows.cells(), 64);
  CHECK(filled(rows, 0, 64));
  rows.shrink(0);
  CHECK_EQ(rows.cells(), 0);
  CHECK_EQ(rows.bytes(), 0u);
  rows.reserve(1);
  CHECK_EQ(rows.cells(), 16);
}

void test_refused_memory() {
  if (kSanitized || kEmulated) return;
  in_child([] {
    RowArray rows(kLanes, kRow, kCapacity, 256);
    rows.reserve(100);
    fill(rows, 0, 100);
    const Cell cells = rows.cells();
    const std::size_t bytes = rows.bytes();
    limit(RLIMIT_DATA, 4096);
    for (int i = 0; i < 3; ++i) {
      CHECK_THROWS(rows.reserve(50000), OutOfMemory, "50000 cells", "compact");
      CHECK_EQ(rows.cells(), cells);
      CHECK_EQ(rows.bytes(), bytes);
      CHECK(filled(rows, 0, 100));
    }
    limit(RLIMIT_DATA, RLIM_INFINITY);
    rows.reserve(50000);
    fill(rows, 100, 50000);
    CHECK(filled(rows, 0, 50000));
  });
}

void test_limited_addresses() {
  if (kSanitized || kEmulated) return;
  in_child([] {
    limit(RLIMIT_AS, rlim_t{1} << 30);
    RowArray rows(kLanes, kRow, kMost, 256);
    rows.reserve(300);
    CHECK_EQ(rows.cells(), 512);  // on the heap
    fill(rows, 0, 512);
    CHECK_THROWS(rows.reserve(1 << 23), OutOfMemory, "8388608 cells");
    CHECK_EQ(rows.cells(), 512);
    CHECK(filled(rows, 0, 512));
    rows.reserve(513);
    CHECK_EQ(rows.cells(), 1024);
    CHECK(filled(rows, 0, 512));
  });
}

void test_forked_children_have_their_own() {
  RowArray rows(kLanes, kRow, kCapacity, 256);
  rows.reserve(1000);
  fill(rows, 0, 1000);
  in_child([&] {
    CHECK(filled(rows, 0, 1000));
    std::memset(rows.row(0, 0), 0, kRow);
    rows.reserve(20000);
    fill(rows, 1000, 20000);
    rows.shrink(0);
  });
  CHECK(filled(rows, 0, 1000));
  rows.shrink(10);
  CHECK(filled(rows, 0, 10));
}

// A hundred caches without a bound fit into the addresses of a process, and take no memory.
void test_no_bound() {
  if (kFewAddresses || kEmulated) return;
  std::vector<RowArray> arrays;
  for (int i = 0; i < 100; ++i) arrays.emplace_back(kLanes, std::size_t{1024}, kMost, 256);
  RowArray& rows = arrays.back();
  rows.reserve(100);
  CHECK(rows.cells() >= 100);
  CHECK(rows.cells() < 110);
  std::memset(rows.row(kLanes - 1, 99), 7, 1024);
  CHECK(rows.row(kLanes - 1, 99)[1023] == std::byte{7});
}

}  // namespace

int main() {
  test_growth();
  test_memory_follows();
  test_slack();
  test_small_arrays_double();
  test_refused_memory();
  test_limited_addresses();
  test_forked_children_have_their_own();
  test_no_bound();
}
