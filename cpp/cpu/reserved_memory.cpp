#include "cpu/reserved_memory.h"

#if defined(__linux__) || defined(__APPLE__)

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

namespace agentkv::cpu {
namespace {

// Private and read-only: no system counts it as memory that it may have to provide.
constexpr int kProtection = PROT_READ;
constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS;

bool addresses_are_limited() {
  rlimit limit{};
  return getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
}

}  // namespace

ReservedMemory::ReservedMemory(std::size_t bytes) noexcept {
  if (bytes == 0 || addresses_are_limited()) return;
  void* data = mmap(nullptr, bytes, kProtection, kFlags, -1, 0);
  if (data == MAP_FAILED) return;
  data_ = static_cast<std::byte*>(data);
  size_ = bytes;
  advise_pages(0, bytes);
}

ReservedMemory::~ReservedMemory() {
  if (data_ != nullptr) munmap(data_, size_);
}

bool ReservedMemory::commit(std::size_t begin, std::size_t end) noexcept {
  return begin >= end || mprotect(data_ + begin, end - begin, PROT_READ | PROT_WRITE) == 0;
}

bool ReservedMemory::map_file(std::size_t begin, std::size_t end, int fd, std::int64_t offset) noexcept {
  // Not writable at once: memory for the pages' private copies may be refused, and would be after the old ones left.
  void* mapped = mmap(data_ + begin, end - begin, kProtection, MAP_PRIVATE | MAP_FIXED, fd, offset);
  if (mapped != MAP_FAILED && commit(begin, end)) return true;
  release(begin, end);
  return false;
}

void ReservedMemory::release(std::size_t begin, std::size_t end) noexcept {
  if (begin >= end) return;
  // A new mapping in place of the old one: madvise would free the pages, but leave them counted where the system
  // counts what it has promised.
  if (mmap(data_ + begin, end - begin, kProtection, kFlags | MAP_FIXED, -1, 0) == MAP_FAILED) {
    madvise(data_ + begin, end - begin, MADV_DONTNEED);
    return;
  }
  advise_pages(begin, end);
}

// A hint, for where 2 MiB are committed: streaming K/V is hard on the TLB.
void ReservedMemory::advise_pages([[maybe_unused]] std::size_t begin, [[maybe_unused]] std::size_t end) noexcept {
#ifdef __linux__
  madvise(data_ + begin, end - begin, huge_pages_ ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
}

void ReservedMemory::discard(std::size_t begin, std::size_t end) noexcept {
  // All of it at once: a system keeps stretches that were advised differently apart, and has so many at most.
  if (std::exchange(huge_pages_, false)) advise_pages(0, size_);
  madvise(data_ + begin, end - begin, MADV_DONTNEED);
}

std::size_t ReservedMemory::page_size() noexcept {
  static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

}  // namespace agentkv::cpu

#else

namespace agentkv::cpu {

ReservedMemory::ReservedMemory(std::size_t) noexcept {}
ReservedMemory::~ReservedMemory() = default;
bool ReservedMemory::commit(std::size_t, std::size_t) noexcept { return false; }
bool ReservedMemory::map_file(std::size_t, std::size_t, int, std::int64_t) noexcept { return false; }
void ReservedMemory::release(std::size_t, std::size_t) noexcept {}
void ReservedMemory::discard(std::size_t, std::size_t) noexcept {}
std::size_t ReservedMemory::page_size() noexcept { return 4096; }

}  // namespace agentkv::cpu

#endif
