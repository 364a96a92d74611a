#include "executorch/session_frame.h"

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {

BuiltCache build_cache(const std::string& backend_id, const KvArchitecture& model, const CacheOptions& options) {
  const CacheConfig config{options, model.n_layers, model.n_kv_heads, model.head_dim, model.windows, model.shapes};
  return CacheBuilderRegistry::instance().build(backend_id, config);
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
