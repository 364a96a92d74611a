// One cache over a loaded program: what the step loop runs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "core/builders.h"
#include "executorch/fault_injector.h"
#include "executorch/program.h"

namespace agentkv {

// The caller's choices for a session's cache.
struct SessionOptions {
  Cell capacity = 0;
  std::string kv_dtype = "fp16";
  Cell min_chunk = 256;
  SeqId max_sequences = kDefaultMaxSequences;
};

// Any number of sessions share one program, and with it its weights; each has its own cells and K/V bytes. A session
// belongs to one thread, different sessions may belong to different threads.
class ExecuTorchSession final : public Program {
 public:
  // A session whose cache has the given face, SeqCache or TreeSeqCache. Throws RegistryError when the program's backend
  // builds no such cache, InvalidRange or InvalidTensor for options out of range.
  template <class Face>
  static std::shared_ptr<ExecuTorchSession> make(std::shared_ptr<ExecuTorchProgram> program,
                                                 const SessionOptions& options) {
    const CacheConfig config = config_of(*program, options);
    auto built = CacheBuilderRegistry::instance().build<Face>(program->backend_id(), config);
    return std::make_shared<ExecuTorchSession>(std::move(program),
                                               BuiltCache<SeqCache>{std::move(built.cache), std::move(built.layer)});
  }

  ExecuTorchSession(std::shared_ptr<ExecuTorchProgram> program, BuiltCache<SeqCache> built);

  const ProgramInfo& info() const override { return program_->info(); }

  // Throws InvalidTensor, before anything runs, for rows that do not fit the program.
  std::span<const float> forward(std::span<const std::int64_t> tokens, std::span<const std::int64_t> positions,
                                 std::span<const std::int64_t> logits_indices) override;

  const std::shared_ptr<SeqCache>& cache() const { return built_.cache; }
  const ByteLayer& layer() const { return *built_.layer; }
  const std::shared_ptr<ExecuTorchProgram>& program() const { return program_; }
  FaultInjector& faults() { return faults_; }

 private:
  static CacheConfig config_of(const ExecuTorchProgram& program, const SessionOptions& options);
  void check(std::span<const std::int64_t> tokens, std::span<const std::int64_t> positions,
             std::span<const std::int64_t> logits_indices) const;

  std::shared_ptr<ExecuTorchProgram> program_;
  BuiltCache<SeqCache> built_;
  FaultInjector faults_;
  std::unique_ptr<float[]> logits_;  // [max_logits, vocab_size]; pages that no forward wrote take no memory
};

}  // namespace agentkv
