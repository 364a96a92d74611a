// A draft head's program (draft.pte) loaded into this process, and a session over it: the head with a cache of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "core/builders.h"
#include "executorch/fault_injector.h"
#include "executorch/pte_module.h"
#include "executorch/session_options.h"
#include "spec/head_program.h"

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
  void execute(const ForwardCache& cache, std::span<const std::int64_t> tokens, std::span<const std::int64_t> positions,
               std::span<const float> hidden, std::span<const std::int64_t> logits_indices, float* logits,
               float* hidden_out);

 private:
  void read_fuse();
  void read_forward();

  PteModule module_;
  HeadInfo info_;
  MatrixInfo fused_, logits_, hidden_out_;
};

// Belongs to one thread.
class ExecuTorchHeadSession final : public HeadProgram {
 public:
  // Throws RegistryError when the head's backend builds no tree cache, InvalidRange or InvalidTensor for options out of
  // range.
  ExecuTorchHeadSession(std::shared_ptr<ExecuTorchHead> head, const SessionOptions& options);

  const HeadInfo& info() const override { return head_->info(); }
  void fuse(std::span<const float> features, std::span<float> hidden) override;
  // Throws InvalidTensor, before anything runs, for rows that do not fit the head.
  HeadRows forward(std::span<const std::int64_t> tokens, std::span<const std::int64_t> positions,
                   std::span<const float> hidden, std::span<const std::int64_t> logits_indices) override;

  const std::shared_ptr<TreeSeqCache>& cache() const { return built_.cache; }
  const ByteLayer& layer() const { return *built_.layer; }
  const std::shared_ptr<ExecuTorchHead>& head() const { return head_; }
  FaultInjector& faults() { return faults_; }

 private:
  std::shared_ptr<ExecuTorchHead> head_;
  BuiltCache<TreeSeqCache> built_;
  FaultInjector faults_;
  std::unique_ptr<float[]> logits_;  // [max_logits, vocab_size]
  std::unique_ptr<float[]> hidden_;  // [max_logits, hidden_dim]
  std::unique_ptr<float[]> fused_;   // [fuse_rows, hidden_dim]: what a program writes to has room for its largest call
};

}  // namespace agentkv
