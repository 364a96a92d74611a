#include "executorch/program.h"

#include <executorch/extension/module/module.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/backend/options.h>
#include <executorch/runtime/core/portable_type/tensor_impl.h>

#include <array>
#include <cstring>
#include <set>
#include <utility>

#include "core/errors.h"
#include "executorch/delegate.h"
#include "executorch/log_capture.h"
#include "executorch/pte_file.h"
#include "executorch/threads.h"

namespace agentkv {
namespace {

namespace et = executorch::runtime;
using et::EValue;
using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::aten::TensorImpl;

constexpr char kForward[] = "forward";
constexpr char kReexport[] = "Export the model again with this version of agentkv";

// A tensor over memory of the caller's, without a copy.
template <int kDims>
class TensorView {
 public:
  TensorView(ScalarType type, const void* data, std::array<TensorImpl::SizesType, kDims> sizes)
      : sizes_(sizes), impl_(type, kDims, sizes_.data(), const_cast<void*>(data), order_.data(), strides_.data()) {
    TensorImpl::StridesType stride = 1;
    for (int i = kDims - 1; i >= 0; --i) {
      order_[i] = static_cast<TensorImpl::DimOrderType>(i);
      strides_[i] = stride;
      stride *= sizes_[i];
    }
  }
  TensorView(const TensorView&) = delete;
  TensorView& operator=(const TensorView&) = delete;

  EValue value() { return EValue(Tensor(&impl_)); }

 private:
  std::array<TensorImpl::SizesType, kDims> sizes_;
  std::array<TensorImpl::DimOrderType, kDims> order_{};
  std::array<TensorImpl::StridesType, kDims> strides_{};
  TensorImpl impl_;
};

TensorView<1> rows_view(std::span<const std::int64_t> rows) {
  return {ScalarType::Long, rows.data(), {static_cast<TensorImpl::SizesType>(rows.size())}};
}

std::string because(et::Error error, const LogCapture& log) {
  const std::string text = log.text();
  return std::string(et::to_string(error)) + (text.empty() ? "" : " (" + text + ")");
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

}  // namespace

ExecuTorchProgram::ExecuTorchProgram(std::string path, std::string backend_id)
    : path_(std::move(path)),
      backend_id_(std::move(backend_id)),
      cache_key_(mint_cache_key()),
      slot_(std::make_shared<CacheSlot>()) {
  register_cpu_delegate();
  check_pte_file(path_);
  install_log_capture();
  const LogCapture log;
  module_ = std::make_unique<Module>(path_, Module::LoadMode::Mmap);
  et::BackendOptions<1> options;
  et::LoadBackendOptionsMap options_map;
  if (options.set_option("cache_key", cache_key_.c_str()) != et::Error::Ok ||
      options_map.set_options(backend_id_.c_str(), options.view()) != et::Error::Ok) {
    fail("backend id '" + backend_id_ + "' or cache key '" + cache_key_ + "' cannot be passed to ExecuTorch");
  }
  const et::Error error = module_->load(options_map, et::Program::Verification::InternalConsistency);
  if (error != et::Error::Ok) {
    fail("damaged: " + because(error, log) + ". Copy it again or export the model again");
  }
  read_architecture();
  check_forward();
  check_backends();
  CacheRegistry::instance().install(cache_key_, slot_);
  try {
    const ForwardGate gate;
    load_forward();
  } catch (...) {
    CacheRegistry::instance().erase(cache_key_);
    throw;
  }
}

void ExecuTorchProgram::load_forward() {
  const LogCapture log;
  const et::Error error = module_->load_method(kForward);
  if (error != et::Error::Ok) {
    const std::string reason = slot_->error ? message_of(std::exchange(slot_->error, nullptr)) : because(error, log);
    fail("its forward cannot be loaded: " + reason + ". " + kReexport);
  }
  pool_generation_ = pool_generation();
}

ExecuTorchProgram::~ExecuTorchProgram() {
  module_.reset();
  CacheRegistry::instance().erase(cache_key_);
}

void ExecuTorchProgram::fail(const std::string& what) const {
  std::string text = what;  // may quote a damaged file
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  throw ProgramError(path_ + ": " + text);
}

std::vector<std::int64_t> ExecuTorchProgram::read_ints(const std::string& method) {
  const LogCapture log;
  // Executing a method whose outputs refer to values that it does not have would stop the process.
  const auto meta = module_->method_meta(method);
  for (std::size_t i = 0; meta.ok() && i < meta->num_outputs(); ++i) {
    if (const auto tag = meta->output_tag(i); !tag.ok() || *tag != executorch::runtime::Tag::Int) {
      fail("its constant " + method + " is not made of integers. " + kReexport);
    }
  }
  auto result = module_->execute(method);
  if (!result.ok()) fail("its constant " + method + " cannot be read: " + because(result.error(), log));
  std::vector<std::int64_t> values;
  for (const EValue& value : *result) values.push_back(value.toInt());
  return values;
}

void ExecuTorchProgram::read_architecture() {
  const auto names = module_->method_names();
  if (!names.ok()) fail("damaged: its methods cannot be listed. Copy it again or export the model again");
  auto read_one = [&](const std::string& name, std::int64_t least, std::int64_t most) {
    const std::string method = "kv_cache." + name;
    if (!names->contains(method)) {
      fail("an ExecuTorch program that agentkv did not export: it has no constant " + method +
           ". Export the model with `agentkv export`");
    }
    const auto values = read_ints(method);
    if (values.size() != 1 || values[0] < least || values[0] > most) {
      fail("its constant " + method + " should be one integer from " + std::to_string(least) + " to " +
           std::to_string(most) + (values.size() == 1 ? ", not " + std::to_string(values[0]) : "") + ". " + kReexport);
    }
    return static_cast<std::int32_t>(values[0]);
  };
  architecture_.schema_version = read_one("schema_version", 0, INT32_MAX);
  if (architecture_.schema_version != kSchemaVersion) {
    fail("its cache schema has version " + std::to_string(architecture_.schema_version) + " and this runtime reads " +
         std::to_string(kSchemaVersion) + ". Install the agentkv that exported it, or export the model again");
  }
  architecture_.n_layers = read_one("n_layers", 1, 1 << 16);
  architecture_.n_kv_heads = read_one("n_kv_heads", 1, 1 << 16);
  architecture_.head_dim = read_one("head_dim", 1, 1 << 16);
  if (!names->contains("kv_cache.windows")) return;
  for (const std::int64_t window : read_ints("kv_cache.windows")) {
    if (window < 0 || window > INT32_MAX) fail("its sliding window " + std::to_string(window) + " is impossible");
    architecture_.windows.push_back(static_cast<Pos>(window));
  }
  if (architecture_.windows.size() != static_cast<std::size_t>(architecture_.n_layers)) {
    fail("it has " + std::to_string(architecture_.windows.size()) + " sliding windows for " +
         std::to_string(architecture_.n_layers) + " layers. " + kReexport);
  }
}

void ExecuTorchProgram::check_forward() {
  const auto meta = module_->method_meta(kForward);
  if (!meta.ok()) fail(std::string("it has no method forward. ") + kReexport);
  const std::string expected =
      ", but agentkv runs forward(tokens [T] int64, position [T] int64, logits_indices [N] int64) -> logits "
      "[N, vocab_size] float32. " +
      std::string(kReexport);
  if (meta->num_inputs() != 3) fail("its forward takes " + std::to_string(meta->num_inputs()) + " inputs" + expected);
  std::array<std::int32_t, 3> rows{};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto tensor = meta->input_tensor_meta(i);
    if (!tensor.ok() || tensor->scalar_type() != ScalarType::Long || tensor->sizes().size() != 1) {
      fail("input " + std::to_string(i) + " of its forward is not a row of int64" + expected);
    }
    rows[i] = tensor->sizes()[0];
  }
  if (rows[0] != rows[1]) {
    fail("its forward takes " + std::to_string(rows[0]) + " tokens and " + std::to_string(rows[1]) + " positions" +
         expected);
  }
  if (meta->num_outputs() < 1) fail("its forward returns nothing" + expected);
  const auto logits = meta->output_tensor_meta(0);
  if (!logits.ok() || logits->scalar_type() != ScalarType::Float || logits->sizes().size() != 2 ||
      logits->sizes()[0] != rows[2]) {
    fail("output 0 of its forward is not [N, vocab_size] float32" + expected);
  }
  info_ = {.vocab_size = logits->sizes()[1], .max_tokens = rows[0], .max_logits = rows[2]};
  output_is_planned_ = logits->is_memory_planned();
}

void ExecuTorchProgram::check_backends() {
  const auto meta = module_->method_meta(kForward);
  if (!meta->uses_backend(backend_id_.c_str())) {
    std::set<std::string> names;
    for (std::size_t i = 0; i < meta->num_backends(); ++i) names.insert(*meta->get_backend_name(i));
    std::string used;
    for (const std::string& name : names) used += (used.empty() ? "" : ", ") + name;
    fail("it holds nothing for the backend " + backend_id_ + ", only for: " + (used.empty() ? "none" : used) +
         ". Export the model again for this backend");
  }
  for (std::size_t i = 0; i < meta->num_backends(); ++i) {
    const char* name = *meta->get_backend_name(i);
    if (et::get_backend_class(name) != nullptr) continue;
    std::string present;
    for (std::size_t j = 0; j < et::get_num_registered_backends(); ++j) {
      present += std::string(j ? ", " : "") + *et::get_backend_name(j);
    }
    fail(std::string("it needs the backend ") + name + ", which this process does not have (it has: " +
         (present.empty() ? "none" : present) + "). Export the model again for one of these");
  }
}

void ExecuTorchProgram::execute(const ForwardCache& cache, std::span<const std::int64_t> tokens,
                                std::span<const std::int64_t> positions, std::span<const std::int64_t> logits_indices,
                                float* out) {
  const std::lock_guard lock(mutex_);
  const ForwardGate gate;
  if (pool_generation_ != pool_generation()) {
    module_->unload_method(kForward);
    load_forward();
  }
  const LogCapture log;
  struct SlotGuard {
    CacheSlot& slot;
    ~SlotGuard() {
      slot.layer.reset();
      slot.before_layer = nullptr;
    }
  } guard{*slot_};
  slot_->layer = cache.layer;
  slot_->before_layer = cache.before_layer;
  slot_->error = nullptr;

  if (!output_is_planned_) {
    TensorView<2> logits(ScalarType::Float, out, {info_.max_logits, info_.vocab_size});
    if (module_->set_output(logits.value()) != et::Error::Ok) throw ForwardFailed("logits: " + log.text());
  }
  auto tokens_view = rows_view(tokens);
  auto positions_view = rows_view(positions);
  auto indices_view = rows_view(logits_indices);
  const auto result = module_->execute(kForward, {tokens_view.value(), positions_view.value(), indices_view.value()});
  if (slot_->error) {
    const std::exception_ptr error = std::exchange(slot_->error, nullptr);
    throw ForwardFailed("forward of " + std::to_string(tokens.size()) + " tokens: " + message_of(error));
  }
  if (!result.ok()) {
    throw ForwardFailed("forward of " + std::to_string(tokens.size()) + " tokens: " + because(result.error(), log));
  }
  const auto logits = (*result)[0].tryToTensor();
  const std::size_t wanted = logits_indices.size() * static_cast<std::size_t>(info_.vocab_size);
  if (!logits.ok() || static_cast<std::size_t>(logits->numel()) != wanted) {
    throw ForwardFailed("the program returned logits of a shape that was not asked for");
  }
  if (logits->const_data_ptr<float>() != out) std::memcpy(out, logits->const_data_ptr<float>(), wanted * sizeof(float));
}

}  // namespace agentkv
