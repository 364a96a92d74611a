// A model program (.pte) loaded into this process: its weights, its facts, and one forward at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/model_runner.h"
#include "executorch/pte_module.h"

namespace agentkv {

// Loads once and serves any number of sessions, from any thread: forwards take turns.
class ExecuTorchProgram {
 public:
  // Throws ProgramError naming the file, what is wrong with it and what to do.
  explicit ExecuTorchProgram(std::string path, std::string backend_id = "AgentKVCPU");

  const std::string& path() const { return module_.path(); }
  const std::string& backend_id() const { return module_.backend_id(); }
  const KvArchitecture& architecture() const { return module_.architecture(); }
  const RunnerInfo& info() const { return info_; }

  // Runs the model over tokens and positions [n_tokens] with `layer` in the program's cache slot. Writes the
  // logits of the rows logits_indices [n_logits], 1 <= n_logits <= max_logits, to `logits`, which must hold max_logits
  // x vocab_size floats, and where feature_dim is above 0 the features of all rows to `features`, which must hold
  // max_tokens x feature_dim. Throws ForwardFailed with what the delegate or a kernel had to say.
  void execute(std::shared_ptr<ByteLayer> layer, std::span<const std::int64_t> tokens,
               std::span<const std::int64_t> positions, std::span<const std::int64_t> logits_indices, float* logits,
               float* features = nullptr);

 private:
  PteModule module_;
  RunnerInfo info_;
  MatrixInfo logits_;
  MatrixInfo features_;
};

}  // namespace agentkv
