#include "executorch/session_options.h"

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {

CacheConfig cache_config(const KvArchitecture& model, const SessionOptions& options) {
  CacheConfig config;
  config.n_layers = model.n_layers;
  config.n_kv_heads = model.n_kv_heads;
  config.head_dim = model.head_dim;
  config.capacity = options.capacity;
  config.min_chunk = options.min_chunk;
  config.kv_dtype = options.kv_dtype.c_str();
  config.max_sequences = options.max_sequences;
  return config;
}

void check_rows(std::size_t n_tokens, std::size_t n_positions, std::span<const std::int64_t> logits_indices,
                std::int32_t max_tokens, std::int32_t max_logits) {
  if (n_tokens < 1 || n_tokens > static_cast<std::size_t>(max_tokens)) {
    throw InvalidTensor(error_text("a forward of ", n_tokens, " tokens; the program takes 1 to ", max_tokens));
  }
  if (n_positions != n_tokens) {
    throw InvalidTensor(error_text(n_tokens, " tokens but ", n_positions, " positions"));
  }
  if (logits_indices.size() > static_cast<std::size_t>(max_logits)) {
    throw InvalidTensor(error_text(logits_indices.size(), " rows of logits; the program returns at most ", max_logits));
  }
  for (const std::int64_t index : logits_indices) {
    if (index < 0 || index >= static_cast<std::int64_t>(n_tokens)) {
      throw InvalidTensor(error_text("logits of row ", index, " in a forward of ", n_tokens, " tokens"));
    }
  }
}

}  // namespace agentkv
