// Linux and macOS.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "platform/cpu.h"
#include "platform/file.h"
#include "platform/memory.h"
#include "platform/process.h"

#if defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace agentkv::platform {
namespace {

// Private and read-only: no system counts it as memory that it may have to provide.
constexpr int kProtection = PROT_READ;
constexpr int kFlags = MAP_PRIVATE | MAP_ANON;

bool addresses_are_limited() {
  rlimit limit{};
  return getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
}

std::int64_t nanoseconds(const timespec& time) { return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

}  // namespace

std::size_t page_size() noexcept {
  static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

std::byte* reserve(std::size_t bytes) noexcept {
  if (addresses_are_limited()) return nullptr;
  void* at = mmap(nullptr, bytes, kProtection, kFlags, -1, 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

void unreserve(std::byte* at, std::size_t bytes) noexcept { munmap(at, bytes); }

bool commit(std::byte* at, std::size_t bytes) noexcept { return mprotect(at, bytes, PROT_READ | PROT_WRITE) == 0; }

bool release(std::byte* at, std::size_t bytes) noexcept {
  // A new mapping in place of the old one: madvise would free the pages, but leave them counted where the system
  // counts what it has promised.
  if (mmap(at, bytes, kProtection, kFlags | MAP_FIXED, -1, 0) != MAP_FAILED) return true;
  madvise(at, bytes, MADV_DONTNEED);
  return false;
}

void discard(std::byte* at, std::size_t bytes) noexcept {
#ifdef __APPLE__  // where advice empties nothing
  mmap(at, bytes, PROT_READ | PROT_WRITE, kFlags | MAP_FIXED, -1, 0);
#else
  madvise(at, bytes, MADV_DONTNEED);
#endif
}

bool map_file(std::byte* at, std::size_t bytes, int fd, std::int64_t offset) noexcept {
  // Not writable at once: memory for the pages' private copies may be refused, and would be after the old ones left.
  return mmap(at, bytes, kProtection, MAP_PRIVATE | MAP_FIXED, fd, offset) != MAP_FAILED && commit(at, bytes);
}

void prefer_huge_pages([[maybe_unused]] std::byte* at, [[maybe_unused]] std::size_t bytes,
                       [[maybe_unused]] bool wanted) noexcept {
#ifdef __linux__
  madvise(at, bytes, wanted ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
}

void read_ahead(const void* at, std::size_t bytes) noexcept {
  const auto begin = reinterpret_cast<std::uintptr_t>(at) / page_size() * page_size();
  posix_madvise(reinterpret_cast<void*>(begin), reinterpret_cast<std::uintptr_t>(at) + bytes - begin,
                POSIX_MADV_WILLNEED);
}

std::int64_t file_size(int fd) noexcept {
  struct stat found{};
  return fstat(fd, &found) == 0 ? static_cast<std::int64_t>(found.st_size) : -1;
}

std::int64_t read_at(int fd, void* out, std::size_t bytes, std::int64_t offset) noexcept {
  return pread(fd, out, bytes, offset);
}

std::optional<FileState> file_state(const std::string& path) noexcept {
  struct stat found{};
  if (stat(path.c_str(), &found) != 0) return std::nullopt;
#ifdef __APPLE__
  const timespec written = found.st_mtimespec;
#else
  const timespec written = found.st_mtim;
#endif
  return FileState{static_cast<std::uint64_t>(found.st_dev), static_cast<std::uint64_t>(found.st_ino),
                   static_cast<std::uint64_t>(found.st_size), nanoseconds(written)};
}

std::int64_t process_id() noexcept { return getpid(); }

// Tiles are so large that Linux keeps them only for those who ask. It refuses where a thread's signal stack would be
// too small for them.
bool may_use_tiles() noexcept {
#if defined(__linux__) && defined(__x86_64__)
  constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTile) == 0 || (d & kInt8) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

bool has_dot_products() noexcept {
#if defined(__aarch64__) && defined(__APPLE__)
  int has = 0;
  std::size_t size = sizeof has;  // older systems do not know the name: every Mac with an Arm processor has them
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) != 0 || has != 0;
#elif defined(__aarch64__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return false;
#endif
}

}  // namespace agentkv::platform
