// Files are read from anywhere, whatever was read before; what is no file is an error; what is written to is known.
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "cpp/check.h"
#include "cpp/scratch_file.h"
#include "platform/file.h"

using namespace agentkv::platform;
using agentkv::testing::ScratchFile;

namespace {

constexpr int kNoFile = 999;
constexpr std::size_t kSize = 100'000;

void test_reads() {
  const ScratchFile file(kSize);
  CHECK_EQ(file_size(file.fd()), static_cast<std::int64_t>(kSize));
  std::vector<std::byte> read(kSize);
  for (const std::size_t offset : {kSize - 10, std::size_t{0}, kSize / 2}) {
    const std::size_t wanted = std::min<std::size_t>(1000, kSize - offset);
    CHECK_EQ(read_at(file.fd(), read.data(), 1000, static_cast<std::int64_t>(offset)),
             static_cast<std::int64_t>(wanted));
    CHECK(std::memcmp(read.data(), file.at(static_cast<std::int64_t>(offset)), wanted) == 0);
  }
  CHECK_EQ(read_at(file.fd(), read.data(), 1, static_cast<std::int64_t>(kSize)), 0);
  CHECK_EQ(read_at(file.fd(), read.data(), 1, std::int64_t{1} << 40), 0);
}

void test_no_file() {
  std::byte byte;
  for (const int fd : {-1, kNoFile}) {
    errno = 0;
    CHECK_EQ(file_size(fd), -1);
    CHECK_EQ(errno, EBADF);
    errno = 0;
    CHECK_EQ(read_at(fd, &byte, 1, 0), -1);
    CHECK_EQ(errno, EBADF);
  }
  CHECK(!file_state("no such file"));
}

void test_state() {
  const ScratchFile file(kSize), other(kSize);
  const auto before = file_state(file.path());
  CHECK(before && before->size == kSize);
  const auto again = file_state(file.path());
  CHECK_EQ(again->written, before->written);
  CHECK_EQ(again->inode, before->inode);
  CHECK(file_state(other.path())->inode != before->inode);

  std::ofstream(file.path(), std::ios::app) << "more";
  const auto longer = file_state(file.path());
  CHECK_EQ(longer->size, kSize + 4);
  CHECK_EQ(longer->inode, before->inode);

  namespace fs = std::filesystem;
  fs::last_write_time(other.path(), fs::last_write_time(other.path()) - std::chrono::hours(1));
  const auto older = file_state(other.path());
  CHECK_EQ(older->size, kSize);
  CHECK(older->written < before->written);
}

}  // namespace

int main() {
  test_reads();
  test_no_file();
  test_state();
}
