// Some of the pages of an array.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace agentkv::cpu {

class PageSet {
 public:
  std::size_t count() const { return count_; }

  bool has(std::size_t page) const { return page < pages_.size() && pages_[page] != 0; }

  void add(std::size_t begin, std::size_t end) {
    if (end > pages_.size()) pages_.resize(end);
    for (; begin < end; ++begin) {
      count_ += 1u - pages_[begin];
      pages_[begin] = 1;
    }
  }

  // As far as they were there.
  void remove(std::size_t begin, std::size_t end) noexcept {
    for (; begin < std::min(end, pages_.size()); ++begin) {
      count_ -= pages_[begin];
      pages_[begin] = 0;
    }
  }

 private:
  std::vector<unsigned char> pages_;  // 1: in the set
  std::size_t count_ = 0;
};

}  // namespace agentkv::cpu
