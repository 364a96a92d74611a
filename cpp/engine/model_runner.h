// The step loop's interface to a model: one forward over the rows of the cache's open step.
#pragma once

#include <cstdint>
#include <span>

#include "engine/types.h"

namespace agentkv {

struct RunnerInfo {
  std::int32_t vocab_size = 0;
  std::int32_t max_tokens = 0;   // rows that one forward takes at most
  std::int32_t max_logits = 0;   // logits rows that one forward returns at most
  std::int32_t feature_dim = 0;  // F: floats that a forward also gives out per row, for draft heads; 0 for none
};

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;
  virtual const RunnerInfo& info() const = 0;
  // tokens, positions: [n_tokens]; logits_indices: [n_logits] rows whose next-token logits are wanted (0 <= n_logits).
  // Returns float32 [n_logits, vocab_size], row-major, valid until the next call. Throws ForwardFailed; the caller
  // then aborts the step.
  virtual std::span<const float> forward(std::span<const std::int64_t> tokens, std::span<const std::int64_t> positions,
                                         std::span<const std::int64_t> logits_indices) = 0;
  // How many adapters it has: those of ids 1 to that many.
  virtual AdapterId adapters() const { return kNoAdapter; }
  // The adapter of each row of the next forward, and of that one alone: without this its rows have none.
  virtual void set_adapters(std::span<const AdapterId>) {}
  // float32 [n_tokens, feature_dim] of the last forward, valid until the next; empty where feature_dim is 0.
  virtual std::span<const float> features() const { return {}; }
};

}  // namespace agentkv
