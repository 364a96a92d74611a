#include "cpu/file_bytes.h"

#include <cerrno>
#include <cstring>

#include "core/errors.h"
#include "core/message.h"
#include "platform/file.h"

namespace agentkv::cpu {

std::int64_t file_size(int fd) {
  const std::int64_t size = platform::file_size(fd);
  require<InvalidRange>(size >= 0, "file descriptor ", fd, ": ", std::strerror(errno));
  return size;
}

void read_file(int fd, std::int64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const std::int64_t n = platform::read_at(fd, out.data(), out.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    require<InvalidRange>(n >= 0, "the file cannot be read at byte ", offset, ": ", std::strerror(errno));
    require<InvalidRange>(n > 0, "the file ends at byte ", offset, ", and ", out.size(), " more are needed");
    out = out.subspan(static_cast<std::size_t>(n));
    offset += n;
  }
}

}  // namespace agentkv::cpu
