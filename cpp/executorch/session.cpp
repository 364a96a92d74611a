#include "executorch/session.h"

#include <array>
#include <utility>

#include "core/errors.h"
#include "core/message.h"
#include "executorch/cpu/cpu_backend.h"

namespace agentkv {
namespace {

std::unique_ptr<float[]> matrix(std::int32_t rows, std::int32_t width) {
  const std::size_t floats = static_cast<std::size_t>(rows) * static_cast<std::size_t>(width);
  return floats == 0 ? nullptr : std::unique_ptr<float[]>(new float[floats]);
}

}  // namespace

ExecuTorchSession::ExecuTorchSession(std::shared_ptr<ExecuTorchProgram> program, const CacheOptions& options)
    : program_(std::move(program)),
      built_(build_cache(program_->backend_id(), program_->architecture(), options)),
      logits_(matrix(info().max_logits, info().vocab_size)),
      features_(matrix(info().max_tokens, info().feature_dim)) {}

AdapterId ExecuTorchSession::add_adapter(cpu::Adapter adapter) {
  require<ProgramError>(program_->backend_id() == kCpuBackendId, "adapters run on the backend ", kCpuBackendId,
                        ", and this program on ", program_->backend_id(), ": merge the adapter at export");
  adapters_.push_back(std::make_unique<const cpu::Adapter>(std::move(adapter)));
  return adapters();
}

void ExecuTorchSession::set_adapters(std::span<const AdapterId> rows) {
  std::vector<const cpu::Adapter*> of_rows;
  for (const AdapterId id : rows) {
    require<InvalidTensor>(kNoAdapter <= id && id <= adapters(), "a row has adapter ", id, " of ", adapters());
    of_rows.push_back(id == kNoAdapter ? nullptr : adapters_[static_cast<std::size_t>(id - 1)].get());
  }
  adapter_rows_.assign(of_rows);
}

std::span<const float> ExecuTorchSession::forward(std::span<const std::int64_t> tokens,
                                                  std::span<const std::int64_t> positions,
                                                  std::span<const std::int64_t> logits_indices) {
  const cpu::AdapterRows adapters = std::exchange(adapter_rows_, {});  // also where this throws
  check_rows(tokens.size(), positions.size(), logits_indices, info().max_tokens, info().max_logits);
  for (const std::int64_t token : tokens) {
    if (token < 0 || token >= info().vocab_size) {
      throw InvalidTensor(error_text("token ", token, " is outside the model's vocabulary of ", info().vocab_size));
    }
  }
  require<InvalidTensor>(adapters.empty() || adapters.rows() == tokens.size(), "adapters of ", adapters.rows(),
                         " rows for a forward of ", tokens.size());
  // Programs are exported for at least one row of logits; a step that wants none drops it.
  static constexpr std::int64_t kFirstRow[] = {0};
  const auto wanted = logits_indices.empty() ? std::span(kFirstRow) : logits_indices;
  n_features_ = 0;
  const std::array inputs{InputRows(tokens), InputRows(positions), InputRows(wanted)};
  const std::array outputs{OutputRows{logits_.get(), program_->logits(), wanted.size()},
                           OutputRows{features_.get(), program_->features(), tokens.size()}};
  program_->module().run(ExecuTorchProgram::kForward, built_.layer, inputs,
                         std::span(outputs).first(info().feature_dim > 0 ? 2 : 1),
                         adapters.empty() ? nullptr : &adapters);
  n_features_ = tokens.size() * static_cast<std::size_t>(info().feature_dim);
  return {logits_.get(), logits_indices.size() * static_cast<std::size_t>(info().vocab_size)};
}

}  // namespace agentkv
