// A range of addresses, of which parts have memory behind them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace agentkv::cpu {

// Addresses are reserved once, at full length, and pages are committed and released in it, so what grows in it never
// moves. Less than a page behind what is committed can be read, and is zero, and must not be written. Committed pages
// take memory as they are first written. Forked children have a copy of their own, made as pages are written.
class ReservedMemory {
 public:
  ReservedMemory() = default;
  // Takes nothing but addresses. Empty where the system has no such thing or refuses, and under a limit on addresses
  // (RLIMIT_AS): they are what is scarce there.
  explicit ReservedMemory(std::size_t bytes) noexcept;
  ~ReservedMemory();
  ReservedMemory(ReservedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        huge_pages_(other.huge_pages_) {}
  ReservedMemory& operator=(ReservedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(huge_pages_, other.huge_pages_);
    return *this;
  }

  explicit operator bool() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }

  // Bytes [begin, end), both multiples of page_size(), can be written from now on. False where the system refuses;
  // nothing is changed then.
  bool commit(std::size_t begin, std::size_t end) noexcept;
  // [begin, end) of committed bytes becomes what lies in the file from `offset` on, all of them multiples of
  // page_size(). Pages are the file's, which everybody who maps them shares, until they are written; the file never
  // changes. False where the system refuses; [begin, end) is released then.
  bool map_file(std::size_t begin, std::size_t end, int fd, std::int64_t offset) noexcept;
  // Gives the memory of [begin, end) back to the system; what was there is lost.
  void release(std::size_t begin, std::size_t end) noexcept;

  // The same for committed bytes, which stay so: they are zero until they are written.
  void discard(std::size_t begin, std::size_t end) noexcept;

  static std::size_t page_size() noexcept;

 private:
  void advise_pages(std::size_t begin, std::size_t end) noexcept;

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  bool huge_pages_ = true;  // are asked for; not where parts are discarded, or the system would fill them again
};

}  // namespace agentkv::cpu
