#include "executorch/pte_file.h"

#include <executorch/runtime/executor/program.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/errors.h"

namespace agentkv {
namespace {

using executorch::runtime::Program;

// The extended header lies behind the flatbuffer's root offset and identifier, little-endian.
constexpr std::size_t kHeaderOffset = 8;
constexpr char kHeaderMagic[] = {'e', 'h', '0', '0'};
constexpr std::uint32_t kLengthWithSegmentSize = 32;

std::uint64_t read_little_endian(const unsigned char* bytes, int n) {
  std::uint64_t value = 0;
  for (int i = n - 1; i >= 0; --i) value = value << 8 | bytes[i];
  return value;
}

}  // namespace

void check_pte_file(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    throw ProgramError(path + ": no such file. Give the path of a .pte that `agentkv export` wrote");
  }
  if (!std::filesystem::is_regular_file(status)) {
    throw ProgramError(path + ": not a file. Give the path of a .pte that `agentkv export` wrote");
  }
  const std::uint64_t size = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  std::array<unsigned char, Program::kMinHeadBytes> head{};
  if (error || !file) throw ProgramError(path + ": cannot be read: " + std::strerror(errno));
  file.read(reinterpret_cast<char*>(head.data()), head.size());
  if (file.gcount() < static_cast<std::streamsize>(head.size())) {
    throw ProgramError(path + ": only " + std::to_string(size) +
                       " bytes long, so it is no ExecuTorch program. Export the model again");
  }
  switch (Program::check_header(head.data(), head.size())) {
    case Program::CompatibleVersion:
      break;
    case Program::IncompatibleVersion:
      throw ProgramError(path + ": an ExecuTorch program of a file format (" +
                         std::string(reinterpret_cast<const char*>(head.data()) + 4, 4) +
                         ") that this runtime does not read. Export the model again with this version of agentkv");
    default:
      throw ProgramError(path + ": not an ExecuTorch program. Give a .pte that `agentkv export` wrote");
  }
  const unsigned char* header = head.data() + kHeaderOffset;
  // A program without data segments has no header of its sizes; the checks of its parser bound it.
  if (std::memcmp(header, kHeaderMagic, sizeof(kHeaderMagic)) != 0) return;
  const std::uint64_t program_size = read_little_endian(header + 8, 8);
  const std::uint64_t segment_offset = read_little_endian(header + 16, 8);
  const bool has_segment_size = read_little_endian(header + 4, 4) >= kLengthWithSegmentSize;
  const std::uint64_t segment_size = has_segment_size ? read_little_endian(header + 24, 8) : 0;
  const bool overflows = segment_offset + segment_size < segment_offset;
  const std::uint64_t needed = std::max(program_size, segment_offset + segment_size);
  if (overflows || needed > size) {
    throw ProgramError(path + ": truncated or damaged: " + std::to_string(size) + " bytes long where its header says " +
                       (overflows ? "an impossible size" : std::to_string(needed)) +
                       ". Copy it again or export the model again");
  }
}

}  // namespace agentkv
