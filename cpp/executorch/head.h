// A draft head's program (draft.pte) loaded into this process: its weights, its facts, and one call at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "executorch/pte_module.h"
#include "spec/head_runner.h"

namespace agentkv {

// Loads once and serves any number of sessions, from any thread: calls take turns.
class ExecuTorchHead {
 public:
  // Throws ProgramError naming the file, what is wrong with it and what to do.
  explicit ExecuTorchHead(std::string path, std::string backend_id = "AgentKVCPU");

  const std::string& path() const { return module_.path(); }
  const std::string& backend_id() const { return module_.backend_id(); }
  const KvArchitecture& architecture() const { return module_.architecture(); }
  const HeadInfo& info() const { return info_; }

  // features [n, feature_dim] -> hidden [n, hidden_dim]; n at most fuse_rows(), and `hidden` holds fuse_rows() rows.
  void fuse(std::span<const float> features, float* hidden);
  std::int32_t fuse_rows() const { return fused_.max_rows; }

  // As ExecuTorchProgram::execute. `logits` and `hidden_out` hold max_logits rows.
  void execute(std::shared_ptr<ByteLayer> layer, std::span<const std::int64_t> tokens,
               std::span<const std::int64_t> positions, std::span<const float> hidden,
               std::span<const std::int64_t> logits_indices, float* logits, float* hidden_out);

 private:
  void read_fuse();
  void read_forward();

  PteModule module_;
  HeadInfo info_;
  MatrixInfo fused_, logits_, hidden_out_;
};

}  // namespace agentkv
