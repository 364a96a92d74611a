// A model program (.pte) loaded into this process: its weights, its facts, and one forward at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/byte_layer.h"
#include "core/registry.h"
#include "core/types.h"
#include "engine/program.h"

namespace executorch::extension::module {
class Module;
}

namespace agentkv {

// What the program's `kv_cache.*` constant methods say about the model.
struct KvArchitecture {
  std::int32_t schema_version = 0;
  std::int32_t n_layers = 0;
  std::int32_t n_kv_heads = 0;
  std::int32_t head_dim = 0;
  std::vector<Pos> windows;  // [n_layers] sliding window of each layer, 0 for none; empty when no layer has one
};

// What one forward runs over.
struct ForwardCache {
  std::shared_ptr<ByteLayer> layer;
  std::function<void(int layer)> before_layer;  // test aid, see FaultInjector; usually empty
};

// Loads once and serves any number of sessions, from any thread: forwards take turns.
class ExecuTorchProgram {
 public:
  static constexpr std::int32_t kSchemaVersion = 1;

  // Throws ProgramError naming the file, what is wrong with it and what to do.
  explicit ExecuTorchProgram(std::string path, std::string backend_id = "AgentKVCPU");
  ~ExecuTorchProgram();
  ExecuTorchProgram(const ExecuTorchProgram&) = delete;
  ExecuTorchProgram& operator=(const ExecuTorchProgram&) = delete;

  const std::string& path() const { return path_; }
  const std::string& backend_id() const { return backend_id_; }
  const KvArchitecture& architecture() const { return architecture_; }
  const ProgramInfo& info() const { return info_; }

  // Runs the model over tokens and positions [n_tokens] with `cache` in place of the program's own slot and writes the
  // logits of the rows logits_indices [n_logits], 1 <= n_logits <= max_logits, to out, which must hold max_logits x
  // vocab_size floats. Throws ForwardFailed with what the delegate or a kernel had to say.
  void execute(const ForwardCache& cache, std::span<const std::int64_t> tokens, std::span<const std::int64_t> positions,
               std::span<const std::int64_t> logits_indices, float* out);

 private:
  using Module = executorch::extension::module::Module;

  [[noreturn]] void fail(const std::string& what) const;
  void read_architecture();
  std::vector<std::int64_t> read_ints(const std::string& method);
  void check_forward();
  void check_backends();
  void load_forward();  // throws ProgramError; under a ForwardGate

  std::string path_;
  std::string backend_id_;
  std::string cache_key_;
  std::shared_ptr<CacheSlot> slot_;  // what the delegate executes over; outlives the module that holds the delegate
  std::unique_ptr<Module> module_;
  KvArchitecture architecture_;
  ProgramInfo info_;
  std::uint64_t pool_generation_ = 0;  // of the thread pool that forward was loaded under
  bool output_is_planned_ = true;      // the program has memory of its own for the logits, so they must be copied out
  std::mutex mutex_;
};

}  // namespace agentkv
