// Addresses and the memory behind them. Ranges begin and end at multiples of page_size().
#pragma once

#include <cstddef>
#include <cstdint>

namespace agentkv::platform {

std::size_t page_size() noexcept;

// Addresses without memory. Null where the system refuses, and under a limit on addresses (RLIMIT_AS): they are what is
// scarce there.
std::byte* reserve(std::size_t bytes) noexcept;
void unreserve(std::byte* at, std::size_t bytes) noexcept;  // all of what one call of reserve() gave

// Reserved bytes can be written from now on. False where the system refuses; nothing is changed then. What was never
// written is zero, and can be read on for less than a page behind what is committed.
bool commit(std::byte* at, std::size_t bytes) noexcept;
// Committed bytes are addresses without memory again. False where the system gives back the memory alone.
bool release(std::byte* at, std::size_t bytes) noexcept;
// Gives the memory of committed bytes back; they are zero until they are written.
void discard(std::byte* at, std::size_t bytes) noexcept;
// Committed bytes become what lies in a file from `offset` on: its pages, which all who map them share, until they are
// written; the file never changes. False where the system has no such thing or refuses; they are to be released then.
bool map_file(std::byte* at, std::size_t bytes, int fd, std::int64_t offset) noexcept;

// Hints, which nothing but speed depends on. The second takes any addresses: of mapped files, which are read from now
// on.
void prefer_huge_pages(std::byte* at, std::size_t bytes, bool wanted) noexcept;
void read_ahead(const void* at, std::size_t bytes) noexcept;

}  // namespace agentkv::platform
