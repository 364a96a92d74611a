// Addresses take no memory until they are written, and keep what is written until it is given back.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cpp/check.h"
#include "cpp/scratch_file.h"
#include "platform/memory.h"

using namespace agentkv::platform;
using agentkv::testing::ScratchFile;

namespace {

const std::size_t kPage = page_size();

// So many pages, of which none is committed.
class Range {
 public:
  explicit Range(std::size_t pages) : bytes_(pages * kPage), at_(reserve(bytes_)) { CHECK(at_ != nullptr); }
  ~Range() { unreserve(at_, bytes_); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

  std::byte* page(std::size_t i) const { return at_ + i * kPage; }

 private:
  std::size_t bytes_;
  std::byte* at_;
};

bool all(const std::byte* at, std::size_t bytes, int value) {
  return std::all_of(at, at + bytes, [value](std::byte byte) { return byte == static_cast<std::byte>(value); });
}

void test_pages() {
  CHECK(kPage >= 4096);
  CHECK_EQ(kPage & (kPage - 1), 0u);
}

void test_commits() {
  const Range range(100);
  CHECK(commit(range.page(0), 10 * kPage));
  CHECK(all(range.page(0), 11 * kPage, 0));  // a page more can be read
  std::memset(range.page(0), 7, 10 * kPage);
  CHECK(commit(range.page(10), 10 * kPage));  // right behind it
  CHECK(all(range.page(0), 10 * kPage, 7));
  CHECK(all(range.page(10), 11 * kPage, 0));
  std::memset(range.page(10), 8, 10 * kPage);
  CHECK(commit(range.page(50), 50 * kPage));  // to the end
  std::memset(range.page(50), 9, 50 * kPage);
  CHECK(all(range.page(10), 10 * kPage, 8));
}

void test_releases() {
  const Range range(30);
  CHECK(commit(range.page(0), 30 * kPage));
  std::memset(range.page(0), 7, 30 * kPage);
  CHECK(release(range.page(20), 10 * kPage));
  CHECK(release(range.page(5), 5 * kPage));  // between
  CHECK(all(range.page(0), 5 * kPage, 7));
  CHECK(all(range.page(5), 1, 0));
  CHECK(all(range.page(10), 10 * kPage, 7));
  CHECK(all(range.page(20), kPage, 0));
  CHECK(commit(range.page(5), 5 * kPage));
  CHECK(all(range.page(5), 5 * kPage, 0));
  std::memset(range.page(5), 8, 5 * kPage);
  CHECK(all(range.page(10), 10 * kPage, 7));
  CHECK(release(range.page(0), 30 * kPage));
  CHECK(commit(range.page(0), kPage));
  CHECK(all(range.page(0), 2 * kPage, 0));
}

void test_discards() {
  const Range range(10);
  CHECK(commit(range.page(0), 10 * kPage));
  std::memset(range.page(0), 7, 10 * kPage);
  discard(range.page(3), 4 * kPage);
  CHECK(all(range.page(0), 3 * kPage, 7));
  CHECK(all(range.page(3), 4 * kPage, 0));
  CHECK(all(range.page(7), 3 * kPage, 7));
  std::memset(range.page(3), 8, 4 * kPage);
  CHECK(all(range.page(3), 4 * kPage, 8));
}

// Where there are mappings in place of memory; where there are none, the pages can be committed anew.
void test_maps() {
  const ScratchFile file(3 * kPage);
  const Range range(10);
  CHECK(commit(range.page(0), 10 * kPage));
  std::memset(range.page(0), 7, 10 * kPage);
  if (map_file(range.page(4), 2 * kPage, file.fd(), static_cast<std::int64_t>(kPage))) {
    CHECK(std::memcmp(range.page(4), file.at(static_cast<std::int64_t>(kPage)), 2 * kPage) == 0);
    std::memset(range.page(4), 8, kPage);
    CHECK(all(range.page(4), kPage, 8));
    CHECK(map_file(range.page(0), kPage, file.fd(), static_cast<std::int64_t>(kPage)));
    CHECK(std::memcmp(range.page(0), file.at(static_cast<std::int64_t>(kPage)), kPage) == 0);  // the file is unchanged
  }
  release(range.page(4), 2 * kPage);
  CHECK(commit(range.page(4), 2 * kPage));
  CHECK(all(range.page(4), 2 * kPage, 0));
  CHECK(all(range.page(6), 4 * kPage, 7));
}

// Hints may be given for anything.
void test_hints() {
  const Range range(1000);
  CHECK(commit(range.page(0), 1000 * kPage));
  std::memset(range.page(0), 7, kPage);
  for (const bool wanted : {true, false}) prefer_huge_pages(range.page(0), 1000 * kPage, wanted);
  read_ahead(range.page(0) + 5, 3 * kPage);
  CHECK(all(range.page(0), kPage, 7));
}

// A cache without a bound reserves far more than there is memory.
void test_no_bound() {
  const std::size_t pages = (std::size_t{1} << 38) / kPage;
  std::byte* at = reserve(pages * kPage);
  if (at == nullptr) return;  // under sanitizers and emulators
  CHECK(commit(at + (pages - 1) * kPage, kPage));
  std::memset(at + (pages - 1) * kPage, 7, kPage);
  unreserve(at, pages * kPage);
}

}  // namespace

int main() {
  test_pages();
  test_commits();
  test_releases();
  test_discards();
  test_maps();
  test_hints();
  test_no_bound();
}
