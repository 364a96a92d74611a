// A .pte loaded into this process: its weights, the facts of its cache, and its methods over a cache slot.
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
#include "executorch/opened_file.h"

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
  std::vector<Pos> windows;        // [n_layers] how far back each layer looks, 0 for all; empty when all do
  std::vector<LayerShape> shapes;  // [n_layers]; empty where all layers are [n_kv_heads, head_dim]
};

// What a method takes: int64 [rows], or float32 [rows, width] where there is a width. Not copied.
struct InputRows {
  const void* data = nullptr;
  std::int32_t rows = 0;
  std::int32_t width = 0;

  explicit InputRows(std::span<const std::int64_t> values)
      : data(values.data()), rows(static_cast<std::int32_t>(values.size())) {}
  InputRows(std::span<const float> values, std::int32_t columns)
      : data(values.data()), rows(static_cast<std::int32_t>(values.size()) / columns), width(columns) {}
};

// A float32 matrix that a method takes or gives out.
struct MatrixInfo {
  std::int32_t max_rows = 0;  // what the program was exported for
  std::int32_t width = 0;
  bool planned = false;  // the program has memory of its own for it, so it must be copied out
};

// Where a method's output goes: `data` holds max_rows x width floats, of which a call writes rows x width.
struct OutputRows {
  float* data = nullptr;
  MatrixInfo info;
  std::size_t rows = 0;
};

// Loads once and serves any number of sessions, from any thread: calls take turns.
class PteModule {
 public:
  static constexpr std::int32_t kSchemaVersion = 1;
  static constexpr std::int32_t kShapesVersion = 2;  // of programs whose layers differ in shape
  static constexpr std::int32_t kStatesVersion = 3;  // of those with layers of linear attention

  // Reads what can be known without loading a method. Throws ProgramError naming the file, what is wrong with it and
  // what to do, as everything below does.
  // A file of fewer bytes than `one_thread_below` runs on the calling thread alone, see OneThread.
  PteModule(std::string path, std::string backend_id, std::uintmax_t one_thread_below = 0);
  ~PteModule();
  PteModule(const PteModule&) = delete;
  PteModule& operator=(const PteModule&) = delete;

  const std::string& path() const { return path_; }
  const std::string& backend_id() const { return backend_id_; }
  const KvArchitecture& architecture() const { return architecture_; }

  // What a method looks like; each throws where it is not as asked. `expected` is how agentkv would call it.
  std::size_t check_method(const std::string& method, std::size_t inputs, const std::string& expected);  // its outputs
  std::int32_t input_rows(const std::string& method, std::size_t input, const std::string& expected);    // of int64
  MatrixInfo input_matrix(const std::string& method, std::size_t input, const std::string& expected);
  MatrixInfo output_matrix(const std::string& method, std::size_t output, const std::string& expected);
  [[noreturn]] void refuse(const std::string& what, const std::string& expected) const;

  // Loads these methods. The first one must run on `backend_id`, and all on backends that this process has.
  void load(std::vector<std::string> methods);

  // Runs a loaded method with `layer` in the program's cache slot. `outputs` are its first outputs, in order.
  // Throws ForwardFailed with what the delegate or a kernel had to say; `what` names the call there. After set_threads
  // it reads the file again, and throws ProgramError where that was written to.
  void run(const std::string& method, std::shared_ptr<ByteLayer> layer, std::span<const InputRows> inputs,
           std::span<const OutputRows> outputs, const RowAdapters* adapters = nullptr);

 private:
  using Module = executorch::extension::module::Module;

  [[noreturn]] void fail(const std::string& what) const;
  void read_architecture();
  void read_shapes(const std::vector<std::int64_t>& values);
  std::vector<std::int64_t> read_ints(const std::string& method);
  void check_backends();
  void load_methods();  // under a ForwardGate

  std::string path_;
  std::string backend_id_;
  const OpenedFile file_;
  const bool one_thread_;
  std::string cache_key_;
  std::shared_ptr<CacheSlot> slot_;  // what the delegate executes over; outlives the module that holds the delegate
  std::unique_ptr<Module> module_;
  std::vector<std::string> methods_;  // that load() was asked for
  KvArchitecture architecture_;
  std::uint64_t pool_generation_ = 0;  // of the thread pool that the methods were loaded under
  std::mutex mutex_;
};

}  // namespace agentkv
