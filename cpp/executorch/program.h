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
  inline static const std::string kForward = "forward";

  // Throws ProgramError naming the file, what is wrong with it and what to do.
  explicit ExecuTorchProgram(std::string path, std::string backend_id = "AgentKVCPU");

  const std::string& path() const { return module_.path(); }
  const std::string& backend_id() const { return module_.backend_id(); }
  const KvArchitecture& architecture() const { return module_.architecture(); }
  const RunnerInfo& info() const { return info_; }

  // The program itself, and the outputs of its method kForward: logits [N, vocab_size], and where feature_dim is above
  // 0 features [T, feature_dim].
  PteModule& module() { return module_; }
  const MatrixInfo& logits() const { return logits_; }
  const MatrixInfo& features() const { return features_; }

 private:
  PteModule module_;
  RunnerInfo info_;
  MatrixInfo logits_;
  MatrixInfo features_;
};

}  // namespace agentkv
