// What the caller chooses for a session's cache, and what every forward of a session checks.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/byte_layer.h"
#include "executorch/pte_module.h"

namespace agentkv {

struct SessionOptions {
  Cell capacity = 0;
  std::string kv_dtype = "fp16";
  Cell min_chunk = 256;
  SeqId max_sequences = kDefaultMaxSequences;
};

// Points into `options`.
CacheConfig cache_config(const KvArchitecture& model, const SessionOptions& options);

// Throws InvalidTensor for rows that do not fit a program of these bounds.
void check_rows(std::size_t n_tokens, std::size_t n_positions, std::span<const std::int64_t> logits_indices,
                std::int32_t max_tokens, std::int32_t max_logits);

}  // namespace agentkv
