#include "cpu/reserved_memory.h"

#include "platform/memory.h"

namespace agentkv::cpu {

ReservedMemory::ReservedMemory(std::size_t bytes) noexcept {
  if (bytes == 0) return;
  data_ = platform::reserve(bytes);
  if (data_ == nullptr) return;
  size_ = bytes;
  advise_pages(0, bytes);
}

ReservedMemory::~ReservedMemory() {
  if (data_ != nullptr) platform::unreserve(data_, size_);
}

bool ReservedMemory::commit(std::size_t begin, std::size_t end) noexcept {
  return begin >= end || platform::commit(data_ + begin, end - begin);
}

bool ReservedMemory::map_file(std::size_t begin, std::size_t end, int fd, std::int64_t offset) noexcept {
  if (platform::map_file(data_ + begin, end - begin, fd, offset)) return true;
  release(begin, end);
  return false;
}

void ReservedMemory::release(std::size_t begin, std::size_t end) noexcept {
  if (begin < end && platform::release(data_ + begin, end - begin)) advise_pages(begin, end);
}

// A hint, for where 2 MiB are committed: streaming K/V is hard on the TLB.
void ReservedMemory::advise_pages(std::size_t begin, std::size_t end) noexcept {
  platform::prefer_huge_pages(data_ + begin, end - begin, huge_pages_);
}

void ReservedMemory::discard(std::size_t begin, std::size_t end) noexcept {
  // All of it at once: a system keeps stretches that were advised differently apart, and has so many at most.
  if (std::exchange(huge_pages_, false)) advise_pages(0, size_);
  platform::discard(data_ + begin, end - begin);
}

std::size_t ReservedMemory::page_size() noexcept { return platform::page_size(); }

}  // namespace agentkv::cpu
