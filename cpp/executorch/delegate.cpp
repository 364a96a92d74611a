#include "executorch/delegate.h"

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "core/registry.h"
#include "cpu/kv_cache.h"
#include "executorch/delegate_blob.h"
#include "executorch/delegate_ops.h"

namespace agentkv {
namespace {

namespace et = ::executorch::runtime;
using delegate::Affine;
using delegate::Blob;
using delegate::DType;
using delegate::Place;
using delegate::View;
using ::executorch::aten::ScalarType;
using ::executorch::aten::Tensor;

constexpr std::size_t kMaxRank = 8;

struct Handle {
  Blob blob;
  std::shared_ptr<CacheSlot> slot;
};

[[noreturn]] void refuse(const std::string& what) { throw InvalidTensor("attention delegate: " + what); }

// The buffers of one execute, and the instructions over them.
class Call {
 public:
  Call(Handle& handle, et::Span<et::EValue*> args) : handle_(handle), args_(args) {
    const Blob& blob = handle.blob;
    if (args.size() != blob.inputs.size() + blob.outputs.size()) {
      refuse(std::to_string(args.size()) + " values for " + std::to_string(blob.inputs.size()) + " inputs and " +
             std::to_string(blob.outputs.size()) + " outputs");
    }
    read_inputs();
    resize_outputs();
    // Temporaries of all delegates of this thread share one block: executes of one program follow one another.
    thread_local std::vector<float> scratch;
    std::int64_t floats = 0;
    for (const auto per_token : blob.temps) floats += per_token * n_tokens_;
    if (scratch.size() < static_cast<std::size_t>(floats)) scratch.resize(static_cast<std::size_t>(floats));
    float* at = scratch.data();
    for (const auto per_token : blob.temps) {
      temps_.push_back(at);
      at += per_token * n_tokens_;
    }
  }

  void run() {
    for (const auto& instruction : handle_.blob.instructions) std::visit(*this, instruction);
  }

  void operator()(const delegate::Copy& op) { delegate::copy_rows(read(op.src), write(op.dst)); }
  void operator()(const delegate::RmsNorm& op) {
    delegate::rms_norm(read(op.src), handle_.blob.constants[op.weight], op.eps, write(op.dst));
  }
  void operator()(const delegate::RopeTable& op) {
    delegate::rope_table(position(op.position), handle_.blob.constants[op.inv_freq], op.scaling, write(op.dst));
  }
  void operator()(const delegate::Rope& op) {
    delegate::rope(read(op.src), read(op.table), op.interleaved, write(op.dst));
  }
  void operator()(const delegate::UpdateAndAttend& op) {
    auto* layer = dynamic_cast<cpu::KvCache*>(handle_.slot->layer.get());
    if (layer == nullptr) {
      throw RegistryError(handle_.slot->layer == nullptr
                              ? "attention delegate: no cache session is active on this program"
                              : "attention delegate: the active cache belongs to another backend");
    }
    if (handle_.slot->before_layer) handle_.slot->before_layer(op.layer);
    const auto spec = layer->update_and_fetch(op.layer, position(op.position), read(op.k), read(op.v));
    layer->attend(spec, read(op.q), op.scale, op.window, write(op.dst));
  }

 private:
  const Tensor& tensor(std::size_t index, DType dtype, std::size_t rank) const {
    if (!args_[index]->isTensor()) refuse("value " + std::to_string(index) + " is no tensor");
    const Tensor& t = args_[index]->toTensor();
    const auto expected = dtype == DType::kFloat32 ? ScalarType::Float : ScalarType::Long;
    if (t.scalar_type() != expected || static_cast<std::size_t>(t.dim()) != rank || rank > kMaxRank) {
      refuse("value " + std::to_string(index) + " has another dtype or rank than the program says");
    }
    return t;
  }

  void read_inputs() {
    const Blob& blob = handle_.blob;
    for (std::size_t i = 0; i < blob.inputs.size(); ++i) {
      const auto& shape = blob.inputs[i].shape;
      const Tensor& t = tensor(i, blob.inputs[i].dtype, shape.size());
      for (std::size_t d = 0; d < shape.size(); ++d) {
        const std::int64_t size = t.size(static_cast<ssize_t>(d));
        if (n_tokens_ < 0 && shape[d].per_token > 0) n_tokens_ = (size - shape[d].constant) / shape[d].per_token;
        if (size != shape[d].at(n_tokens_)) {
          refuse("input " + std::to_string(i) + " has size " + std::to_string(size) + " in dimension " +
                 std::to_string(d) + ", not " + std::to_string(shape[d].at(n_tokens_)));
        }
      }
      if (blob.inputs[i].dtype == DType::kFloat32 && !et::tensor_is_default_dim_order(t)) {
        refuse("input " + std::to_string(i) + " is not stored in its dimension order");
      }
    }
    if (n_tokens_ < 1) refuse("a call of " + std::to_string(n_tokens_) + " rows");
  }

  void resize_outputs() {
    const Blob& blob = handle_.blob;
    for (std::size_t i = 0; i < blob.outputs.size(); ++i) {
      const auto& shape = blob.outputs[i].shape;
      const std::size_t arg = blob.inputs.size() + i;
      tensor(arg, blob.outputs[i].dtype, shape.size());
      std::array<::executorch::aten::SizesType, kMaxRank> sizes{};
      for (std::size_t d = 0; d < shape.size(); ++d) {
        sizes[d] = static_cast<::executorch::aten::SizesType>(shape[d].at(n_tokens_));
      }
      if (et::resize_tensor(args_[arg]->toTensor(), {sizes.data(), shape.size()}) != et::Error::Ok) {
        refuse("output " + std::to_string(i) + " has no room for " + std::to_string(n_tokens_) + " rows");
      }
    }
  }

  float* base(const View& view) const {
    if (view.place == Place::kTemp) return temps_[view.index];
    const std::size_t arg = view.index + (view.place == Place::kOutput ? handle_.blob.inputs.size() : 0);
    // Inputs are only read: the blob was checked to write none.
    return const_cast<float*>(args_[arg]->toTensor().const_data_ptr<float>());
  }

  cpu::MutableHeadsView write(const View& view) const {
    return {base(view) + view.offset.at(n_tokens_), view.heads,
            static_cast<std::int32_t>(n_tokens_),   view.dim,
            view.head_stride.at(n_tokens_),         view.token_stride.constant};
  }
  cpu::HeadsView read(const View& view) const {
    const auto v = write(view);
    return {v.data, v.heads, v.tokens, v.dim, v.head_stride, v.token_stride};
  }
  std::span<const std::int64_t> position(std::uint32_t index) const {
    return {args_[index]->toTensor().const_data_ptr<std::int64_t>(), static_cast<std::size_t>(n_tokens_)};
  }

  Handle& handle_;
  et::Span<et::EValue*> args_;
  std::int64_t n_tokens_ = -1;
  std::vector<float*> temps_;
};

class CpuDelegate final : public et::BackendInterface {
 public:
  bool is_available() const override { return true; }

  et::Result<et::DelegateHandle*> init(et::BackendInitContext& context, et::FreeableBuffer* processed,
                                       et::ArrayRef<et::CompileSpec>) const override {
    std::shared_ptr<CacheSlot> slot;
    try {
      const auto key = context.get_runtime_spec<const char*>(kCacheKeyOption);
      if (!key.ok()) {
        throw RegistryError(std::string("attention delegate: the program was loaded without the option ") +
                            kCacheKeyOption + " of backend " + kCpuDelegateId);
      }
      slot = CacheRegistry::instance().find(key.get());
      auto handle = std::make_unique<Handle>();
      handle->slot = slot;
      handle->blob = delegate::parse_blob(processed->data(), processed->size());
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
      Call(handle, args).run();
      return et::Error::Ok;
    } catch (...) {
      handle.slot->error = std::current_exception();
      return et::Error::DelegateInvalidHandle;
    }
  }

  void destroy(et::DelegateHandle* raw) const override { delete static_cast<Handle*>(raw); }
};

}  // namespace

void register_cpu_delegate() {
  static const et::Error result = [] {
    static CpuDelegate backend;
    return et::register_backend({kCpuDelegateId, &backend});
  }();
  if (result != et::Error::Ok) {
    throw Error(std::string("ExecuTorch refused to register backend ") + kCpuDelegateId + ": " + et::to_string(result));
  }
}

}  // namespace agentkv
