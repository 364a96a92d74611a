// The contiguous face of a bookkeeping: its sequence 0, which is alone in the pool.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/cache.h"

namespace agentkv {

class AGENTKV_API ContiguousView final : public ContiguousCache {
 public:
  // `cache` holds nothing yet, and nobody else uses it.
  explicit ContiguousView(std::shared_ptr<SeqCache> cache) : cache_(std::move(cache)) {}

  bool can_extend(std::int64_t n) const override { return cache_->can_extend(n); }
  Cell capacity() const override { return cache_->capacity(); }
  Cell used() const override { return cache_->used(); }
  void clear() override { cache_->clear(); }

  void begin_step(std::int32_t n) override;
  void commit_step() override { cache_->commit_step(); }
  void abort_step() noexcept override { cache_->abort_step(); }
  std::span<const Pos> step_positions() const override { return cache_->step_positions(); }

  Pos length() const override { return cache_->seq_len(0); }
  void rewind(Pos length) override;

 private:
  std::shared_ptr<SeqCache> cache_;
  std::vector<SeqId> rows_;  // zeros
};

}  // namespace agentkv
