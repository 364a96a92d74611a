#include "executorch/cpu/cpu_backend.h"

#include <executorch/runtime/core/exec_aten/util/tensor_util.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/cache_builders.h"
#include "core/errors.h"
#include "cpu/adapter.h"
#include "cpu/blocks/block_experts.h"
#include "cpu/blocks/block_linear.h"
#include "cpu/kv_cache.h"
#include "cpu/linear/experts.h"
#include "cpu/linear/linear.h"
#include "cpu/row_ops.h"
#include "executorch/cpu/delegate_blob.h"
#include "executorch/cpu/mapped_weights.h"
#include "executorch/slot_backend.h"
#include "executorch/threads.h"

namespace agentkv {
namespace {

namespace et = ::executorch::runtime;
using delegate::Blob;
using delegate::DType;
using delegate::Place;
using delegate::View;
using ::executorch::aten::ScalarType;
using ::executorch::aten::Tensor;

constexpr std::size_t kMaxRank = 8;
constexpr char kTitle[] = "attention delegate";

[[noreturn]] void refuse(const std::string& what) { throw InvalidTensor(std::string(kTitle) + ": " + what); }

// The buffers of one execute, and the instructions over them.
class Call {
 public:
  Call(const Blob& blob, const MappedWeights& weights, CacheSlot& slot, et::Span<et::EValue*> args)
      : blob_(blob), weights_(weights), slot_(slot), args_(args) {
    if (slot.adapters != nullptr) adapters_ = dynamic_cast<const cpu::AdapterRows*>(slot.adapters);
    if (args.size() != blob_.inputs.size() + blob_.outputs.size()) {
      refuse(std::to_string(args.size()) + " values for " + std::to_string(blob_.inputs.size()) + " inputs and " +
             std::to_string(blob_.outputs.size()) + " outputs");
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
    for (const auto& instruction : blob_.instructions) std::visit(*this, instruction);
  }

  void operator()(const delegate::Copy& op) { cpu::copy_rows(read(op.src), write(op.dst), parallel_for); }
  void operator()(const delegate::RmsNorm& op) {
    cpu::rms_norm(read(op.src), blob_.constants[op.weight], op.eps, write(op.dst), parallel_for);
  }
  void operator()(const delegate::RopeTable& op) {
    cpu::rope_table(position(op.position), blob_.constants[op.inv_freq], op.scaling, write(op.dst), parallel_for);
  }
  void operator()(const delegate::Rope& op) {
    cpu::rope(read(op.src), read(op.table), op.interleaved, write(op.dst), parallel_for);
  }
  void operator()(const delegate::UpdateAndAttend& op) {
    auto& layer = active_layer<cpu::KvCache>(slot_, kTitle);
    const auto at = position(op.position);
    const auto spec =
        op.writes ? layer.update_and_fetch(op.layer, at, read(op.k), read(op.v)) : layer.fetch(op.layer, at);
    const cpu::Scoring scoring{op.scale, op.cap, constant(op.sink_scores), constant(op.slopes)};
    layer.attend(spec, read(op.q), scoring, {.window = op.window, .chunk = op.chunk}, write(op.dst));
  }
  void operator()(const delegate::Convolve& op) {
    auto& layer = active_layer<cpu::KvCache>(slot_, kTitle);
    const auto spec = layer.update_and_fetch(op.layer, position(op.position), read(op.src), {});
    layer.convolve(spec, {op.width, blob_.constants[op.weight], constant(op.bias)}, write(op.dst));
  }
  void operator()(const delegate::LinearAttend& op) {
    auto& layer = active_layer<cpu::KvCache>(slot_, kTitle);
    layer.attend_linear(op.layer, position(op.position),
                        {.q = read(op.q),
                         .k = read(op.k),
                         .v = read(op.v),
                         .decay = read(op.decay),
                         .beta = op.has_beta ? read(op.beta) : cpu::HeadsView{},
                         .corrects = op.corrects,
                         .skip = constant(op.skip),
                         .out = write(op.dst)});
  }
  void operator()(const delegate::Scan& op) {
    auto& layer = active_layer<cpu::KvCache>(slot_, kTitle);
    layer.scan(op.layer, position(op.position),
               {read(op.x), read(op.decay), blob_.constants[op.rates], read(op.b), read(op.c), write(op.dst)});
  }
  void operator()(const delegate::Linear& op) {
    thread_local cpu::QuantizedRows codes;
    const cpu::HeadsView x = read(op.src);
    const cpu::MutableHeadsView y = write(op.dst);
    codes.assign(x.data, x.tokens, x.dim, static_cast<std::size_t>(x.token_stride), parallel_for);
    cpu::linear(codes, weights_.of(op), constant(op.bias), y.data, static_cast<std::size_t>(y.token_stride),
                parallel_for);
    adapt(op.weight.name, x, y);
  }
  void operator()(const delegate::BlockLinear& op) {
    const cpu::HeadsView x = read(op.src);
    const cpu::MutableHeadsView y = write(op.dst);
    cpu::block_linear(x.data, static_cast<std::size_t>(x.token_stride), x.tokens, weights_.of(op), constant(op.bias),
                      y.data, static_cast<std::size_t>(y.token_stride), parallel_for);
    adapt(op.weight.name, x, y);
  }
  void operator()(const delegate::BlockLookup& op) {
    const cpu::MutableHeadsView y = write(op.dst);
    cpu::block_lookup(weights_.of(op), integers(op.ids, 1), op.factor, y.data, static_cast<std::size_t>(y.token_stride),
                      parallel_for);
  }
  void operator()(const delegate::ExpertLinear& op) {
    cpu::expert_linear(read(op.src), integers(op.chosen, op.dst.heads), weights_.of(op), constant(op.bias),
                       write(op.dst), parallel_for);
  }
  void operator()(const delegate::BlockExpertLinear& op) {
    cpu::block_expert_linear(read(op.src), integers(op.chosen, op.dst.heads), weights_.of(op), constant(op.bias),
                             write(op.dst), parallel_for);
  }
  void operator()(const delegate::WeightedSum& op) {
    cpu::weighted_sum(read(op.src), read(op.weights), write(op.dst), parallel_for);
  }
  void operator()(const delegate::Add& op) { cpu::add_rows(read(op.a), read(op.b), write(op.dst), parallel_for); }
  void operator()(const delegate::Multiply& op) {
    cpu::multiply_rows(read(op.a), read(op.b), write(op.dst), parallel_for);
  }
  void operator()(const delegate::Activate& op) {
    cpu::gate_rows(static_cast<cpu::Gate>(op.gate), read(op.src), nullptr, write(op.dst), parallel_for);
  }
  void operator()(const delegate::Gated& op) {
    const cpu::HeadsView up = read(op.up);
    cpu::gate_rows(static_cast<cpu::Gate>(op.gate), read(op.src), &up, write(op.dst), parallel_for);
  }

 private:
  // Adds what the rows' adapters, if they have some, add to the layers of a weight.
  void adapt(const std::string& weight, const cpu::HeadsView& x, const cpu::MutableHeadsView& y) const {
    if (adapters_ != nullptr) cpu::add_adapters(*adapters_, weight, x, y, parallel_for);
  }

  const Tensor& tensor(std::size_t index, DType dtype, std::size_t rank) const {
    if (!args_[index]->isTensor()) refuse("value " + std::to_string(index) + " is no tensor");
    const Tensor& t = args_[index]->toTensor();
    const auto expected = dtype == DType::Float32 ? ScalarType::Float : ScalarType::Long;
    if (t.scalar_type() != expected || static_cast<std::size_t>(t.dim()) != rank || rank > kMaxRank) {
      refuse("value " + std::to_string(index) + " has another dtype or rank than the program says");
    }
    return t;
  }

  void read_inputs() {
    for (std::size_t i = 0; i < blob_.inputs.size(); ++i) {
      const auto& shape = blob_.inputs[i].shape;
      const Tensor& t = tensor(i, blob_.inputs[i].dtype, shape.size());
      for (std::size_t d = 0; d < shape.size(); ++d) {
        const std::int64_t size = t.size(static_cast<ssize_t>(d));
        if (n_tokens_ < 0 && shape[d].per_token > 0) n_tokens_ = (size - shape[d].constant) / shape[d].per_token;
        if (size != shape[d].at(n_tokens_)) {
          refuse("input " + std::to_string(i) + " has size " + std::to_string(size) + " in dimension " +
                 std::to_string(d) + ", not " + std::to_string(shape[d].at(n_tokens_)));
        }
      }
      if (!et::tensor_is_default_dim_order(t)) {
        refuse("input " + std::to_string(i) + " is not stored in its dimension order");
      }
    }
    if (n_tokens_ < 1) refuse("a call of " + std::to_string(n_tokens_) + " rows");
  }

  void resize_outputs() {
    for (std::size_t i = 0; i < blob_.outputs.size(); ++i) {
      const auto& shape = blob_.outputs[i].shape;
      const std::size_t arg = blob_.inputs.size() + i;
      tensor(arg, blob_.outputs[i].dtype, shape.size());
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
    if (view.place == Place::Temp) return temps_[view.index];
    const std::size_t arg = view.index + (view.place == Place::Output ? blob_.inputs.size() : 0);
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
  // Of an index that counts from 1; nothing for 0.
  std::span<const float> constant(std::uint32_t index) const {
    return index == 0 ? std::span<const float>{} : std::span<const float>(blob_.constants[index - 1]);
  }
  std::span<const std::int64_t> position(std::uint32_t index) const { return integers(index, 1); }
  // `width` for each row.
  std::span<const std::int64_t> integers(std::uint32_t index, std::int32_t width) const {
    return {args_[index]->toTensor().const_data_ptr<std::int64_t>(),
            static_cast<std::size_t>(n_tokens_) * static_cast<std::size_t>(width)};
  }

  const Blob& blob_;
  const MappedWeights& weights_;
  CacheSlot& slot_;
  et::Span<et::EValue*> args_;
  const cpu::AdapterRows* adapters_ = nullptr;
  std::int64_t n_tokens_ = -1;
  std::vector<float*> temps_;
};

class CpuDelegate final : public LoadedDelegate {
 public:
  CpuDelegate(const et::FreeableBuffer& processed, const et::NamedDataMap* data)
      : blob_(delegate::parse_blob(processed.data(), processed.size())), weights_(blob_, data) {}

  void execute(CacheSlot& slot, et::Span<et::EValue*> args) override { Call(blob_, weights_, slot, args).run(); }

 private:
  const Blob blob_;
  const MappedWeights weights_;
};

class CpuBackend final : public SlotBackend {
 public:
  CpuBackend() : SlotBackend(kCpuBackendId, kTitle) {}

 private:
  std::unique_ptr<LoadedDelegate> load(et::BackendInitContext& context,
                                       const et::FreeableBuffer& processed) const override {
    return std::make_unique<CpuDelegate>(processed, context.get_named_data_map());
  }
};

}  // namespace

void register_cpu_backend() {
  static CpuBackend backend;
  backend.register_once();
  CacheBuilderRegistry::instance().add_backend(
      kCpuBackendId, [](const CacheConfig& config, std::shared_ptr<StepPlanner> planner) {
        return std::make_shared<cpu::KvCache>(config, std::move(planner), parallel_for);
      });
}

}  // namespace agentkv
