#include "executorch/mlx/mlx_backend.h"

#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <mlx/memory.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "core/message.h"
#include "executorch/slot_backend.h"
#include "mlx/builders.h"
#include "mlx/graph.h"
#include "mlx/kv_cache.h"
#include "mlx/owner.h"

namespace agentkv {
namespace {

namespace et = ::executorch::runtime;
namespace mx = ::mlx::core;
using ::executorch::aten::ScalarType;
using ::executorch::aten::Tensor;
using mlx::Graph;
using mlx::KvCache;
using mlx::on_owner;

constexpr char kBackendId[] = "AgentKVMLX";
constexpr char kTitle[] = "MLX delegate";

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw InvalidTensor(error_text(kTitle, ": ", parts...));
}

mx::Dtype dtype_of(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return mx::float32;
    case ScalarType::Half:
      return mx::float16;
    case ScalarType::BFloat16:
      return mx::bfloat16;
    case ScalarType::Long:
      return mx::int64;
    case ScalarType::Int:
      return mx::int32;
    case ScalarType::Byte:
      return mx::uint8;
    case ScalarType::Bool:
      return mx::bool_;
    default:
      refuse("a tensor of dtype ", static_cast<int>(type));
  }
}

// The constant as an array. MLX's Metal device can take the mapped file itself, where it begins on a page; its CPU
// device makes a copy and lets the mapping go at once.
mx::array load_constant(const et::NamedDataMap& data, const std::string& key, mx::Dtype dtype, const mx::Shape& shape) {
  auto found = data.get_data(key);
  if (!found.ok()) throw ProgramError(error_text(kTitle, ": the program has no constant ", key));
  const auto held = std::make_shared<et::FreeableBuffer>(std::move(found.get()));
  std::size_t bytes = dtype.size();
  for (const auto size : shape) bytes *= static_cast<std::size_t>(size);
  void* at = const_cast<void*>(held->data());  // MLX writes to no memory that it does not own
  if (held->size() < bytes || reinterpret_cast<std::uintptr_t>(at) % dtype.size() != 0) {
    throw ProgramError(error_text(kTitle, ": constant ", key, " has ", held->size(), " bytes, not ", bytes,
                                  ", or lies where it cannot be read"));
  }
  return mx::array(at, shape, dtype, [held](void*) {});
}

// One execute, on the owner.
class Call {
 public:
  Call(const Graph& graph, CacheSlot& slot, et::Span<et::EValue*> args)
      : graph_(graph), slot_(slot), args_(args), n_inputs_(graph_.inputs().size()) {
    if (args.size() != n_inputs_ + graph_.outputs().size()) {
      refuse(args.size(), " values for ", n_inputs_, " inputs and ", graph_.outputs().size(), " outputs");
    }
  }

  void run() {
    auto& cache = active_layer<KvCache>(slot_, kTitle);
    try {
      forward(cache);
    } catch (...) {
      cache.abandon();
      throw;
    }
    cache.settle();
  }

 private:
  const Tensor& tensor(std::size_t index) const {
    if (!args_[index]->isTensor()) refuse("value ", index, " is no tensor");
    const Tensor& t = args_[index]->toTensor();
    if (!et::tensor_is_default_dim_order(t)) refuse("value ", index, " is not stored in its dimension order");
    return t;
  }

  void forward(KvCache& cache) {
    std::vector<mlx::Input> inputs;
    for (std::size_t i = 0; i < n_inputs_; ++i) {
      const Tensor& t = tensor(i);
      mx::Shape shape(t.sizes().begin(), t.sizes().end());
      inputs.push_back({t.const_data_ptr(), dtype_of(t.scalar_type()), std::move(shape)});
    }
    auto outputs = graph_.run(inputs, cache);
    for (mx::array& output : outputs) output = mx::contiguous(output);
    mx::eval(outputs);
    for (std::size_t i = 0; i < outputs.size(); ++i) give_out(outputs[i], n_inputs_ + i);
  }

  void give_out(const mx::array& result, std::size_t index) const {
    const Tensor& t = tensor(index);
    if (dtype_of(t.scalar_type()) != result.dtype()) refuse("output of another dtype than the program says");
    const auto& shape = result.shape();
    const std::vector<::executorch::aten::SizesType> sizes(shape.begin(), shape.end());
    if (et::resize_tensor(args_[index]->toTensor(), {sizes.data(), sizes.size()}) != et::Error::Ok) {
      refuse("output ", index - n_inputs_, " has no room for ", result.size(), " elements");
    }
    std::memcpy(t.mutable_data_ptr(), result.data<std::uint8_t>(), result.nbytes());
  }

  const Graph& graph_;
  CacheSlot& slot_;
  et::Span<et::EValue*> args_;
  const std::size_t n_inputs_;
};

class MlxDelegate final : public LoadedDelegate {
 public:
  MlxDelegate(const et::FreeableBuffer& processed, const et::NamedDataMap* data) {
    on_owner([&] {
      const auto load = [&](const std::string& key, mx::Dtype dtype, const mx::Shape& shape) {
        if (data == nullptr) throw ProgramError(std::string(kTitle) + ": the program has no named data");
        return load_constant(*data, key, dtype, shape);
      };
      graph_ = std::make_unique<Graph>(processed.data(), processed.size(), load);
    });
  }

  ~MlxDelegate() override {
    try {
      on_owner([this] {
        graph_.reset();
        mx::clear_cache();  // freed arrays go back to the system, not to the next one of their size
      });
    } catch (const std::exception& error) {
      graph_.release();  // a forked child: MLX did not come along, so its arrays cannot be freed either
      ET_LOG(Error, "%s", error.what());
    }
  }

  void execute(CacheSlot& slot, et::Span<et::EValue*> args) override {
    on_owner([&] { Call(*graph_, slot, args).run(); });
  }

 private:
  std::unique_ptr<Graph> graph_;
};

class MlxBackend final : public SlotBackend {
 public:
  MlxBackend() : SlotBackend(kBackendId, kTitle) {}

 private:
  std::unique_ptr<LoadedDelegate> load(et::BackendInitContext& context,
                                       const et::FreeableBuffer& processed) const override {
    return std::make_unique<MlxDelegate>(processed, context.get_named_data_map());
  }
};

}  // namespace

void register_mlx_backend() {
  static MlxBackend backend;
  backend.register_once();
  mlx::register_builders();
}

}  // namespace agentkv
