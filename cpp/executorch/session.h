// One cache over a loaded program: what the step loop runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "core/builders.h"
#include "executorch/fault_injector.h"
#include "executorch/program.h"
#include "executorch/session_options.h"

namespace agentkv {

// Any number of sessions share one program, and with it its weights; each has its own cells and K/V bytes. A session
// belongs to one thread, different sessions may belong to different threads.
class ExecuTorchSession final : public Program {
 public:
  // A session whose cache has the given face, SeqCache or TreeSeqCache. Throws RegistryError when the program's backend
  // builds no such cache, InvalidRange or InvalidTensor for options out of range.
  template <class Face>
  static std::shared_ptr<ExecuTorchSession> make(std::shared_ptr<ExecuTorchProgram> program,
                                                 const SessionOptions& options) {
    auto built = CacheBuilderRegistry::instance().build<Face>(program->backend_id(),
                                                              cache_config(program->architecture(), options));
    return std::make_shared<ExecuTorchSession>(std::move(program),
                                               BuiltCache<SeqCache>{std::move(built.cache), std::move(built.layer)});
  }

  ExecuTorchSession(std::shared_ptr<ExecuTorchProgram> program, BuiltCache<SeqCache> built);

  const ProgramInfo& info() const override { return program_->info(); }

  // Throws InvalidTensor, before anything runs, for rows that do not fit the program.
  std::span<const float> forward(std::span<const std::int64_t> tokens, std::span<const std::int64_t> positions,
                                 std::span<const std::int64_t> logits_indices) override;

  std::span<const float> features() const override { return {features_.get(), n_features_}; }

  const std::shared_ptr<SeqCache>& cache() const { return built_.cache; }
  const ByteLayer& layer() const { return *built_.layer; }
  const std::shared_ptr<ExecuTorchProgram>& program() const { return program_; }
  FaultInjector& faults() { return faults_; }

 private:
  std::shared_ptr<ExecuTorchProgram> program_;
  BuiltCache<SeqCache> built_;
  FaultInjector faults_;
  // Pages that no forward wrote take no memory. The program writes in place: features that nobody reads cost no copy.
  std::unique_ptr<float[]> logits_;    // [max_logits, vocab_size]
  std::unique_ptr<float[]> features_;  // [max_tokens, feature_dim]; null where feature_dim is 0
  std::size_t n_features_ = 0;         // of the last forward
};

}  // namespace agentkv
