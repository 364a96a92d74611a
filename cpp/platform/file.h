// Files, as the system knows them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace agentkv::platform {

// Of an open file; -1 and errno where there is none.
std::int64_t file_size(int fd) noexcept;

// Reads at most `bytes` from byte `offset` on, whatever the descriptor's own position is. Returns how many were read, 0
// at the end of the file, -1 and errno where it cannot be read; EINTR where it is to be tried again.
std::int64_t read_at(int fd, void* out, std::size_t bytes, std::int64_t offset) noexcept;

// Which file a path leads to, and what of it changes when it is written to.
struct FileState {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;
  std::int64_t written = 0;  // when, in the system's smallest unit
};

// Nothing where there is no such file. The path is UTF-8.
std::optional<FileState> file_state(const std::string& path) noexcept;

}  // namespace agentkv::platform
