#include "executorch/session.h"

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {

CacheConfig ExecuTorchSession::config_of(const ExecuTorchProgram& program, const SessionOptions& options) {
  const KvArchitecture& model = program.architecture();
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

ExecuTorchSession::ExecuTorchSession(std::shared_ptr<ExecuTorchProgram> program, BuiltCache<SeqCache> built)
    : program_(std::move(program)),
      built_(std::move(built)),
      logits_(new float[static_cast<std::size_t>(info().max_logits) * static_cast<std::size_t>(info().vocab_size)]) {}

void ExecuTorchSession::check(std::span<const std::int64_t> tokens, std::span<const std::int64_t> positions,
                              std::span<const std::int64_t> logits_indices) const {
  const auto n_tokens = static_cast<std::int64_t>(tokens.size());
  if (n_tokens < 1 || n_tokens > info().max_tokens) {
    throw InvalidTensor(error_text("a forward of ", n_tokens, " tokens; the program takes 1 to ", info().max_tokens));
  }
  if (positions.size() != tokens.size()) {
    throw InvalidTensor(error_text(n_tokens, " tokens but ", positions.size(), " positions"));
  }
  if (logits_indices.size() > static_cast<std::size_t>(info().max_logits)) {
    throw InvalidTensor(
        error_text(logits_indices.size(), " rows of logits; the program returns at most ", info().max_logits));
  }
  for (const std::int64_t token : tokens) {
    if (token < 0 || token >= info().vocab_size) {
      throw InvalidTensor(error_text("token ", token, " is outside the model's vocabulary of ", info().vocab_size));
    }
  }
  for (const std::int64_t index : logits_indices) {
    if (index < 0 || index >= n_tokens) {
      throw InvalidTensor(error_text("logits of row ", index, " in a forward of ", n_tokens, " tokens"));
    }
  }
}

std::span<const float> ExecuTorchSession::forward(std::span<const std::int64_t> tokens,
                                                  std::span<const std::int64_t> positions,
                                                  std::span<const std::int64_t> logits_indices) {
  check(tokens, positions, logits_indices);
  // Programs are exported for at least one row of logits; a step that wants none drops it.
  static constexpr std::int64_t kFirstRow[] = {0};
  const bool none = logits_indices.empty();
  program_->execute({built_.layer, faults_.next_forward()}, tokens, positions,
                    none ? std::span(kFirstRow) : logits_indices, logits_.get());
  return {logits_.get(), logits_indices.size() * static_cast<std::size_t>(info().vocab_size)};
}

}  // namespace agentkv
