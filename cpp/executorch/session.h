// One cache over a loaded program: what the step loop runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpu/adapter.h"
#include "executorch/program.h"
#include "executorch/session_frame.h"

namespace agentkv {

// Any number of sessions share one program, and with it its weights; each has its own cells and K/V bytes. A session
// belongs to one thread, different sessions may belong to different threads.
class ExecuTorchSession final : public ModelRunner {
 public:
  // Throws what build_cache does.
  ExecuTorchSession(std::shared_ptr<ExecuTorchProgram> program, const CacheOptions& options);

  const RunnerInfo& info() const override { return program_->info(); }

  // Throws InvalidTensor, before anything runs, for rows that do not fit the program.
  std::span<const float> forward(std::span<const std::int64_t> tokens, std::span<const std::int64_t> positions,
                                 std::span<const std::int64_t> logits_indices) override;

  std::span<const float> features() const override { return {features_.get(), n_features_}; }

  // From now on rows may have this adapter, under the id that is returned, for as long as the session is there. Throws
  // ProgramError for a program whose linear layers are not instructions of ours, or lack one that the adapter is of.
  AdapterId add_adapter(cpu::Adapter adapter);
  AdapterId adapters() const override { return static_cast<AdapterId>(adapters_.size()); }
  void set_adapters(std::span<const AdapterId> rows) override;

  const std::shared_ptr<Bookkeeping>& cache() const { return built_.cells; }
  ByteLayer& layer() const { return *built_.layer; }
  const std::shared_ptr<ExecuTorchProgram>& program() const { return program_; }

 private:
  std::shared_ptr<ExecuTorchProgram> program_;
  BuiltCache built_;
  // Pages that no forward wrote take no memory. The program writes in place: features that nobody reads cost no copy.
  std::unique_ptr<float[]> logits_;                            // [max_logits, vocab_size]
  std::unique_ptr<float[]> features_;                          // [max_tokens, feature_dim]; null where feature_dim is 0
  std::size_t n_features_ = 0;                                 // of the last forward
  std::vector<std::unique_ptr<const cpu::Adapter>> adapters_;  // that of id 1 first
  cpu::AdapterRows adapter_rows_;                              // of the next forward
};

}  // namespace agentkv
