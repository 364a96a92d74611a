// A file of random bytes with a descriptor, by the standard library alone; it is removed at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "cpp/check.h"

#ifdef _WIN32
#include <io.h>
#endif

namespace agentkv::testing {

class ScratchFile {
 public:
  explicit ScratchFile(std::size_t size) : bytes_(size) {
    std::mt19937 random(7);
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(1 + random() % 255);
    path_ = (std::filesystem::temp_directory_path() / ("agentkv_" + std::to_string(std::random_device()()))).string();
    file_ = std::fopen(path_.c_str(), "w+bx");
    CHECK(file_ != nullptr);
    CHECK_EQ(std::fwrite(bytes_.data(), 1, size, file_), size);
    std::fflush(file_);
  }
  ~ScratchFile() {
    std::fclose(file_);
    std::error_code gone_already;
    std::filesystem::remove(path_, gone_already);
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  int fd() const {
#ifdef _WIN32
    return _fileno(file_);
#else
    return fileno(file_);
#endif
  }
  const std::string& path() const { return path_; }
  const std::byte* at(std::int64_t offset) const { return bytes_.data() + offset; }

 private:
  std::vector<std::byte> bytes_;
  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace agentkv::testing
