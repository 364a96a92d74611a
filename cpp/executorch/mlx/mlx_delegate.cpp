#include "executorch/mlx/mlx_delegate.h"

#include <executorch/runtime/backend/interface.h>
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
#include "core/registry.h"
#include "executorch/delegate.h"
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

struct Handle {
  std::shared_ptr<CacheSlot> slot;
  std::unique_ptr<Graph> graph;
};

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw InvalidTensor(error_text("MLX delegate: ", parts...));
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
  if (!found.ok()) throw ProgramError("MLX delegate: the program has no constant " + key);
  const auto held = std::make_shared<et::FreeableBuffer>(std::move(found.get()));
  std::size_t bytes = dtype.size();
  for (const auto size : shape) bytes *= static_cast<std::size_t>(size);
  void* at = const_cast<void*>(held->data());  // MLX writes to no memory that it does not own
  if (held->size() < bytes || reinterpret_cast<std::uintptr_t>(at) % dtype.size() != 0) {
    throw ProgramError(error_text("MLX delegate: constant ", key, " has ", held->size(), " bytes, not ", bytes,
                                  ", or lies where it cannot be read"));
  }
  return mx::array(at, shape, dtype, [held](void*) {});
}

// One execute, on the owner.
class Call {
 public:
  Call(const Handle& handle, et::Span<et::EValue*> args)
      : graph_(*handle.graph), slot_(*handle.slot), args_(args), n_inputs_(graph_.inputs().size()) {
    if (args.size() != n_inputs_ + graph_.outputs().size()) {
      refuse(args.size(), " values for ", n_inputs_, " inputs and ", graph_.outputs().size(), " outputs");
    }
  }

  void run() {
    auto* cache = dynamic_cast<KvCache*>(slot_.layer.get());
    if (cache == nullptr) {
      throw RegistryError(slot_.layer == nullptr ? "MLX delegate: no cache session is active on this program"
                                                 : "MLX delegate: the active cache belongs to another backend");
    }
    try {
      forward(*cache);
    } catch (...) {
      cache->abandon();
      throw;
    }
    cache->settle();
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
    auto outputs = graph_.run(inputs, cache, slot_.before_layer);
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

class MlxDelegate final : public et::BackendInterface {
 public:
  bool is_available() const override { return true; }

  et::Result<et::DelegateHandle*> init(et::BackendInitContext& context, et::FreeableBuffer* processed,
                                       et::ArrayRef<et::CompileSpec>) const override {
    std::shared_ptr<CacheSlot> slot;
    try {
      const auto key = context.get_runtime_spec<const char*>(kCacheKeyOption);
      if (!key.ok()) {
        throw RegistryError(std::string("MLX delegate: the program was loaded without the option ") + kCacheKeyOption +
                            " of backend " + kMlxDelegateId);
      }
      slot = CacheRegistry::instance().find(key.get());
      const et::NamedDataMap* data = context.get_named_data_map();
      auto handle = std::make_unique<Handle>();
      handle->slot = slot;
      on_owner([&] {
        handle->graph = std::make_unique<Graph>(processed->data(), processed->size(),
                                                [&](const std::string& name, mx::Dtype dtype, const mx::Shape& shape) {
                                                  if (data == nullptr)
                                                    throw ProgramError("MLX delegate: the program has no named data");
                                                  return load_constant(*data, name, dtype, shape);
                                                });
      });
      processed->Free();
      return static_cast<et::DelegateHandle*>(handle.release());
    } catch (const std::exception& error) {
      if (slot != nullptr) {
        slot->error = std::current_exception();
      } else {
        ET_LOG(Error, "%s", error.what());
      }
      return et::Error::DelegateInvalidCompatibility;
    }
  }

  et::Error execute(et::BackendExecutionContext&, et::DelegateHandle* raw, et::Span<et::EValue*> args) const override {
    auto& handle = *static_cast<Handle*>(raw);
    try {
      on_owner([&] { Call(handle, args).run(); });
      return et::Error::Ok;
    } catch (...) {
      handle.slot->error = std::current_exception();
      return et::Error::DelegateInvalidHandle;
    }
  }

  void destroy(et::DelegateHandle* raw) const override {
    std::unique_ptr<Handle> handle(static_cast<Handle*>(raw));
    try {
      on_owner([&] {
        handle->graph.reset();
        mx::clear_cache();  // freed arrays go back to the system, not to the next one of their size
      });
    } catch (const std::exception& error) {
      handle.release();  // a forked child: MLX did not come along, so its arrays cannot be freed either
      ET_LOG(Error, "%s", error.what());
    }
  }
};

}  // namespace

void register_mlx_delegate() {
  static const et::Error result = [] {
    static MlxDelegate backend;
    return et::register_backend({kMlxDelegateId, &backend});
  }();
  if (result != et::Error::Ok) {
    throw Error(std::string("ExecuTorch refused to register backend ") + kMlxDelegateId + ": " + et::to_string(result));
  }
}

}  // namespace agentkv
