// The interface of a draft head: one decoder layer over the target's features, which may have a vocabulary of its own.
#pragma once

#include <cstdint>
#include <span>

namespace agentkv {

struct HeadInfo {
  std::int32_t vocab_size = 0;   // of the head: columns of its logits
  std::int32_t max_tokens = 0;   // rows that one forward takes at most
  std::int32_t max_logits = 0;   // rows that one forward returns at most
  std::int32_t feature_dim = 0;  // F: floats that the target gives out per row
  std::int32_t hidden_dim = 0;   // H: floats that the head takes and gives out per row
};

// Rows valid until the next call.
struct HeadRows {
  std::span<const float> logits;  // [n_logits, vocab_size]
  std::span<const float> hidden;  // [n_logits, hidden_dim]
};

class HeadRunner {
 public:
  virtual ~HeadRunner() = default;
  virtual const HeadInfo& info() const = 0;
  // features [n, feature_dim] of the target -> hidden [n, hidden_dim]; any n, cut into chunks where it must be.
  virtual void fuse(std::span<const float> features, std::span<float> hidden) = 0;
  // tokens, positions: [n_tokens] over the open step of the head's cache; hidden: [n_tokens, hidden_dim], fused
  // features or what an earlier forward gave out. Throws ForwardFailed; the caller then aborts the step.
  virtual HeadRows forward(std::span<const std::int64_t> tokens, std::span<const std::int64_t> positions,
                           std::span<const float> hidden, std::span<const std::int64_t> logits_indices) = 0;
};

}  // namespace agentkv
