// Which pages of an array are pages of a file still, rather than memory of this process.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace agentkv::cpu {

class MappedPages {
 public:
  std::size_t count() const { return count_; }

  // Pages [begin, end) are the file's.
  void add(std::size_t begin, std::size_t end) {
    if (end > mapped_.size()) mapped_.resize(end);
    for (; begin < end; ++begin) {
      count_ += 1u - mapped_[begin];
      mapped_[begin] = 1;
    }
  }

  // They are no more, as far as they were.
  void remove(std::size_t begin, std::size_t end) noexcept {
    for (; begin < std::min(end, mapped_.size()); ++begin) {
      count_ -= mapped_[begin];
      mapped_[begin] = 0;
    }
  }

 private:
  std::vector<unsigned char> mapped_;  // 1: of a file
  std::size_t count_ = 0;
};

}  // namespace agentkv::cpu
