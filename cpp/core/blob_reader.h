// Reads what the exporter packed for a delegate: little-endian numbers behind a header with magic, version, size and
// CRC-32. Every read is checked, so that a damaged file ends in an error and not in a wrong model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace agentkv {

class BlobReader {
 public:
  // A reader of the payload behind the header. `owner` names the delegate in messages; `magic` has four letters.
  // Throws ProgramError for another magic or version, a wrong checksum, and, as every read, for what ends early.
  BlobReader(std::string owner, const char* magic, std::uint32_t version, const void* data, std::size_t size);

  template <typename T>
  T read() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    take(&value, sizeof(T));
    return value;
  }

  void take(void* out, std::size_t n);
  std::uint32_t count();  // of a list that follows
  std::string text();     // a count and so many bytes
  void finish() const;    // throws unless everything was read

  [[noreturn]] void damaged(const std::string& what) const;

 private:
  std::string owner_;
  const std::uint8_t* at_;
  std::size_t left_;
};

}  // namespace agentkv
