// Windows 10 and newer.
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <io.h>
#include <windows.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "platform/cpu.h"
#include "platform/file.h"
#include "platform/memory.h"
#include "platform/process.h"

#ifdef __MINGW32__  // whose headers lack it
extern "C" _invalid_parameter_handler _set_thread_local_invalid_parameter_handler(_invalid_parameter_handler);
#endif

namespace agentkv::platform {
namespace {

// What is reserved cannot be read here. One page behind what is committed can, and is known by its protection.
bool commit_readable(std::byte* at) { return VirtualAlloc(at, page_size(), MEM_COMMIT, PAGE_READONLY) != nullptr; }

MEMORY_BASIC_INFORMATION state_of(const std::byte* at) {
  MEMORY_BASIC_INFORMATION state{};
  VirtualQuery(at, &state, sizeof state);
  return state;
}

// Is the page at `at` one of what was reserved together with `among`?
bool belongs(const std::byte* at, const std::byte* among) {
  return state_of(at).AllocationBase == state_of(among).AllocationBase;
}

void decommit(std::byte* at, std::size_t bytes) { VirtualFree(at, bytes, MEM_DECOMMIT); }

std::int64_t joined(DWORD high, DWORD low) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(high) << 32 | low);
}

int errno_of(DWORD error) {
  switch (error) {
    case ERROR_INVALID_HANDLE:
      return EBADF;
    case ERROR_ACCESS_DENIED:
    case ERROR_LOCK_VIOLATION:
      return EACCES;
    case ERROR_NOT_ENOUGH_MEMORY:
      return ENOMEM;
    default:
      return EIO;
  }
}

// For as long as it lives, a descriptor that is none is an error of this thread, and not the end of the process.
class CheckedDescriptors {
 public:
  CheckedDescriptors() : before_(_set_thread_local_invalid_parameter_handler(ignore)) {}
  ~CheckedDescriptors() { _set_thread_local_invalid_parameter_handler(before_); }
  CheckedDescriptors(const CheckedDescriptors&) = delete;
  CheckedDescriptors& operator=(const CheckedDescriptors&) = delete;

 private:
  static void ignore(const wchar_t*, const wchar_t*, const wchar_t*, unsigned, std::uintptr_t) {}

  _invalid_parameter_handler before_;
};

// INVALID_HANDLE_VALUE and errno where there is none.
HANDLE handle_of(int fd) {
  const CheckedDescriptors checked;
  const auto file = reinterpret_cast<HANDLE>(_get_osfhandle(fd));
  if (file == INVALID_HANDLE_VALUE) errno = EBADF;
  return file;
}

// Empty where it is not UTF-8.
std::wstring wide(const std::string& text) {
  const int bytes = static_cast<int>(text.size());
  const int size = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text.data(), bytes, nullptr, 0);
  std::wstring out(static_cast<std::size_t>(size), L'\0');
  MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text.data(), bytes, out.data(), size);
  return out;
}

}  // namespace

std::size_t page_size() noexcept {
  static const std::size_t size = [] {
    SYSTEM_INFO info{};
    GetSystemInfo(&info);
    return static_cast<std::size_t>(info.dwPageSize);
  }();
  return size;
}

std::byte* reserve(std::size_t bytes) noexcept {
  return static_cast<std::byte*>(VirtualAlloc(nullptr, bytes, MEM_RESERVE, PAGE_READWRITE));
}

void unreserve(std::byte* at, std::size_t) noexcept { VirtualFree(at, 0, MEM_RELEASE); }

bool commit(std::byte* at, std::size_t bytes) noexcept {
  std::byte* end = at + bytes;
  const bool last = !belongs(end, at), known = !last && state_of(end).State == MEM_COMMIT;
  if (!last && !known && !commit_readable(end)) return false;
  if (VirtualAlloc(at, bytes, MEM_COMMIT, PAGE_READWRITE) != nullptr) return true;
  if (!last && !known) decommit(end, page_size());
  return false;
}

bool release(std::byte* at, std::size_t bytes) noexcept {
  std::byte* end = at + bytes;
  if (belongs(end, at) && state_of(end).Protect == PAGE_READONLY) decommit(end, page_size());
  decommit(at, bytes);
  const std::byte* before = at - page_size();  // where that can be written, the page behind it stays to be read
  return !belongs(before, at) || state_of(before).Protect != PAGE_READWRITE || commit_readable(at);
}

// What was promised to this process is given back and asked for again.
void discard(std::byte* at, std::size_t bytes) noexcept {
  decommit(at, bytes);
  VirtualAlloc(at, bytes, MEM_COMMIT, PAGE_READWRITE);
}

// Views of files have addresses of their own here, or take the place of placeholders, of 64 KiB at least.
bool map_file(std::byte*, std::size_t, int, std::int64_t) noexcept { return false; }

void prefer_huge_pages(std::byte*, std::size_t, bool) noexcept {}

void read_ahead(const void* at, std::size_t bytes) noexcept {
  WIN32_MEMORY_RANGE_ENTRY range{const_cast<void*>(at), bytes};
  PrefetchVirtualMemory(GetCurrentProcess(), 1, &range, 0);
}

std::int64_t file_size(int fd) noexcept {
  const HANDLE file = handle_of(fd);
  LARGE_INTEGER size{};
  if (file == INVALID_HANDLE_VALUE) return -1;
  if (GetFileSizeEx(file, &size) != 0) return size.QuadPart;
  errno = errno_of(GetLastError());
  return -1;
}

// The descriptor's own position moves, which nobody of ours goes by.
std::int64_t read_at(int fd, void* out, std::size_t bytes, std::int64_t offset) noexcept {
  const HANDLE file = handle_of(fd);
  if (file == INVALID_HANDLE_VALUE) return -1;
  OVERLAPPED at{};
  at.Offset = static_cast<DWORD>(offset);
  at.OffsetHigh = static_cast<DWORD>(offset >> 32);
  DWORD read = 0;
  const auto wanted = static_cast<DWORD>(std::min(bytes, std::size_t{1} << 30));
  if (ReadFile(file, out, wanted, &read, &at)) return read;
  const DWORD error = GetLastError();
  if (error == ERROR_HANDLE_EOF) return 0;
  errno = errno_of(error);
  return -1;
}

std::optional<FileState> file_state(const std::string& path) noexcept {
  constexpr DWORD kShared = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
  const HANDLE file = CreateFileW(wide(path).c_str(), FILE_READ_ATTRIBUTES, kShared, nullptr, OPEN_EXISTING,
                                  FILE_FLAG_BACKUP_SEMANTICS, nullptr);
  if (file == INVALID_HANDLE_VALUE) return std::nullopt;
  BY_HANDLE_FILE_INFORMATION found{};
  const bool known = GetFileInformationByHandle(file, &found) != 0;
  CloseHandle(file);
  if (!known) return std::nullopt;
  const FILETIME& written = found.ftLastWriteTime;
  return FileState{found.dwVolumeSerialNumber,
                   static_cast<std::uint64_t>(joined(found.nFileIndexHigh, found.nFileIndexLow)),
                   static_cast<std::uint64_t>(joined(found.nFileSizeHigh, found.nFileSizeLow)),
                   joined(written.dwHighDateTime, written.dwLowDateTime)};
}

std::int64_t process_id() noexcept { return GetCurrentProcessId(); }

// Not asked for yet: a process has to enable them (EnableProcessOptionalXStateFeatures).
bool may_use_tiles() noexcept { return false; }

bool has_dot_products() noexcept {
#if defined(__aarch64__) || defined(_M_ARM64)
  constexpr DWORD kDotProducts = 43;  // PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE
  return IsProcessorFeaturePresent(kDotProducts) != 0;
#else
  return false;
#endif
}

}  // namespace agentkv::platform
