// Packs graphs by hand, as the exporter does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace agentkv::testing {

using Bytes = std::vector<std::uint8_t>;
using Sizes = std::vector<std::int64_t>;

enum Code : std::uint32_t { kF32 = 0, kI64 = 1, kF16 = 2, kBF16 = 3, kI32 = 4, kU32 = 5, kBool = 7 };
inline constexpr std::int64_t kToEnd = std::numeric_limits<std::int64_t>::max();

inline std::uint32_t crc32(const Bytes& bytes) {
  std::uint32_t crc = ~0u;
  for (const auto byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) ? 0xEDB88320u ^ (crc >> 1) : crc >> 1;
  }
  return ~crc;
}

struct Packer {
  Bytes bytes;

  template <typename T>
  Packer& put(T value) {
    const auto* at = reinterpret_cast<const std::uint8_t*>(&value);
    bytes.insert(bytes.end(), at, at + sizeof(T));
    return *this;
  }
  Packer& u32(std::size_t value) { return put(static_cast<std::uint32_t>(value)); }
  template <typename T>
  Packer& list(const std::vector<T>& values) {
    u32(values.size());
    for (const T value : values) put(value);
    return *this;
  }
  Packer& text(const std::string& text) {
    u32(text.size());
    bytes.insert(bytes.end(), text.begin(), text.end());
    return *this;
  }
};

inline Bytes with_header(const Bytes& payload, std::uint32_t version = 1) {
  Packer out{{'A', 'K', 'V', 'G'}};
  out.u32(version).u32(payload.size()).u32(crc32(payload));
  out.bytes.insert(out.bytes.end(), payload.begin(), payload.end());
  return out.bytes;
}

// Inputs and constants come before the first instruction: values are numbered in this order.
class GraphWriter {
 public:
  std::int32_t input(std::uint32_t dtype, const Sizes& sizes) {
    inputs_.u32(dtype).list(sizes);
    ++n_inputs_;
    return next_++;
  }
  std::int32_t constant(const std::string& key, std::uint32_t dtype, const Sizes& sizes) {
    constants_.text(key).u32(dtype).list(sizes);
    ++n_constants_;
    return next_++;
  }
  std::int32_t op(std::uint32_t opcode, const std::vector<std::int32_t>& args, const Sizes& ints = {},
                  const std::vector<double>& floats = {}) {
    instructions_.u32(opcode).list(args).list(ints).list(floats);
    ++n_instructions_;
    return next_++;
  }
  GraphWriter& output(std::int32_t value, std::uint32_t dtype, const Sizes& sizes) {
    outputs_.put(value).u32(dtype).list(sizes);
    ++n_outputs_;
    return *this;
  }

  Bytes payload() const {
    Packer out;
    const auto section = [&](std::size_t n, const Packer& part) {
      out.u32(n);
      out.bytes.insert(out.bytes.end(), part.bytes.begin(), part.bytes.end());
    };
    section(n_inputs_, inputs_);
    section(n_constants_, constants_);
    section(n_instructions_, instructions_);
    section(n_outputs_, outputs_);
    return out.bytes;
  }
  Bytes blob() const { return with_header(payload()); }

 private:
  Packer inputs_, constants_, instructions_, outputs_;
  std::size_t n_inputs_ = 0, n_constants_ = 0, n_instructions_ = 0, n_outputs_ = 0;
  std::int32_t next_ = 0;
};

}  // namespace agentkv::testing
