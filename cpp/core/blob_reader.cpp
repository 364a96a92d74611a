#include "core/blob_reader.h"

#include <array>
#include <cstring>
#include <utility>

#include "core/errors.h"

namespace agentkv {
namespace {

constexpr std::size_t kMagicLength = 4;
constexpr std::uint32_t kMaxCount = 1u << 20;  // far above any real count, far below what would exhaust memory

std::uint32_t crc32(const std::uint8_t* data, std::size_t size) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> t{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = (c & 1) ? 0xEDB88320u ^ (c >> 1) : c >> 1;
      t[i] = c;
    }
    return t;
  }();
  std::uint32_t crc = ~0u;
  for (std::size_t i = 0; i < size; ++i) crc = table[(crc ^ data[i]) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

}  // namespace

BlobReader::BlobReader(std::string owner, const char* magic, std::uint32_t version, const void* data, std::size_t size)
    : owner_(std::move(owner)), at_(static_cast<const std::uint8_t*>(data)), left_(size) {
  char start[kMagicLength];
  take(start, kMagicLength);
  if (std::memcmp(start, magic, kMagicLength) != 0) damaged("it does not start as one");
  const auto found = read<std::uint32_t>();
  if (found != version) {
    throw ProgramError(owner_ + ": blob version " + std::to_string(found) + ", this build reads version " +
                       std::to_string(version) + "; export the model again, or install the agentkv that exported it");
  }
  const auto payload_size = read<std::uint32_t>();
  const auto checksum = read<std::uint32_t>();
  if (payload_size > left_) damaged("it ends early");
  left_ = payload_size;
  if (crc32(at_, left_) != checksum) damaged("its checksum does not match");
}

void BlobReader::take(void* out, std::size_t n) {
  if (n > left_) damaged("it ends early");
  if (n > 0) std::memcpy(out, at_, n);
  at_ += n;
  left_ -= n;
}

std::uint32_t BlobReader::count() {
  const auto n = read<std::uint32_t>();
  if (n > kMaxCount) damaged("a list of " + std::to_string(n) + " entries");
  return n;
}

std::string BlobReader::text() {
  std::string out(count(), '\0');
  take(out.data(), out.size());
  return out;
}

void BlobReader::finish() const {
  if (left_ != 0) damaged("it goes on after its end");
}

void BlobReader::damaged(const std::string& what) const {
  throw ProgramError(owner_ + ": damaged blob: " + what + "; export the model again");
}

}  // namespace agentkv
