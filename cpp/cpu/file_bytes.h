// Reading an open file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace agentkv::cpu {

// Throws InvalidRange for what is no open file, or cannot say its size.
std::int64_t file_size(int fd);

// Fills `out` from byte `offset` on. Throws InvalidRange where the file ends before, or cannot be read.
void read_file(int fd, std::int64_t offset, std::span<std::byte> out);

}  // namespace agentkv::cpu
