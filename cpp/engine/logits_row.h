// One stored row of next-token logits, shared by the branches it is true of.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace agentkv {

using LogitsRow = std::shared_ptr<const std::vector<float>>;  // [vocab_size], or null

// Hands out rows and takes their memory back: at 151,936 entries a fresh allocation costs more than the copy.
// The rows must die on the thread that the pool is used on.
class RowPool {
 public:
  LogitsRow copy(std::span<const float> row) {
    auto storage = std::make_unique<std::vector<float>>();
    if (!free_->empty()) {
      *storage = std::move(free_->back());
      free_->pop_back();
    }
    storage->assign(row.begin(), row.end());
    return LogitsRow(storage.release(), [free = free_](const std::vector<float>* done) {
      std::unique_ptr<std::vector<float>> owned(const_cast<std::vector<float>*>(done));
      if (free->size() < kKept) free->push_back(std::move(*owned));
    });
  }

 private:
  static constexpr std::size_t kKept = 64;

  static std::shared_ptr<std::vector<std::vector<float>>> make_free() {
    auto free = std::make_shared<std::vector<std::vector<float>>>();
    free->reserve(kKept);  // so that giving a row back cannot throw
    return free;
  }

  std::shared_ptr<std::vector<std::vector<float>>> free_ = make_free();
};

}  // namespace agentkv
