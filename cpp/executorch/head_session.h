// A draft head with a cache of its own: what an EAGLE drafter runs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "executorch/head.h"
#include "executorch/session_frame.h"
#include "spec/head_runner.h"

namespace agentkv {

// Belongs to one thread.
class ExecuTorchHeadSession final : public HeadRunner {
 public:
  // Throws what build_cache does.
  ExecuTorchHeadSession(std::shared_ptr<ExecuTorchHead> head, const CacheOptions& options);

  const HeadInfo& info() const override { return head_->info(); }
  void fuse(std::span<const float> features, std::span<float> hidden) override;
  // Throws InvalidTensor, before anything runs, for rows that do not fit the head.
  HeadRows forward(std::span<const std::int64_t> tokens, std::span<const std::int64_t> positions,
                   std::span<const float> hidden, std::span<const std::int64_t> logits_indices) override;

  const std::shared_ptr<Bookkeeping>& cache() const { return built_.cells; }
  const ByteLayer& layer() const { return *built_.layer; }
  const std::shared_ptr<ExecuTorchHead>& head() const { return head_; }

 private:
  std::shared_ptr<ExecuTorchHead> head_;
  BuiltCache built_;
  std::unique_ptr<float[]> logits_;  // [max_logits, vocab_size]
  std::unique_ptr<float[]> hidden_;  // [max_logits, hidden_dim]
  std::unique_ptr<float[]> fused_;   // [fuse_rows, hidden_dim]: what a program writes to has room for its largest call
};

}  // namespace agentkv
