#include "executorch/pte_module.h"

#include <executorch/extension/module/module.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/backend/options.h>
#include <executorch/runtime/core/portable_type/tensor_impl.h>

#include <array>
#include <cstring>
#include <deque>
#include <set>
#include <utility>

#include "core/errors.h"
#include "executorch/log_capture.h"
#include "executorch/pte_file.h"
#include "executorch/slot_backend.h"
#include "executorch/threads.h"

namespace agentkv {
namespace {

namespace et = executorch::runtime;
using et::EValue;
using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::aten::TensorImpl;

constexpr char kReexport[] = "Export the model again with this version of agentkv";

// A tensor over memory of the caller's, without a copy.
class TensorView {
 public:
  // int64 [rows], or float32 [rows, width] for a width above 0.
  TensorView(const void* data, std::int32_t rows, std::int32_t width)
      : sizes_{rows, width},
        strides_{width > 0 ? width : 1, 1},
        impl_(width > 0 ? ScalarType::Float : ScalarType::Long, width > 0 ? 2 : 1, sizes_.data(),
              const_cast<void*>(data), order_.data(), strides_.data()) {}
  TensorView(const TensorView&) = delete;
  TensorView& operator=(const TensorView&) = delete;

  EValue value() { return EValue(Tensor(&impl_)); }

 private:
  std::array<TensorImpl::SizesType, 2> sizes_;
  std::array<TensorImpl::DimOrderType, 2> order_{0, 1};
  std::array<TensorImpl::StridesType, 2> strides_;
  TensorImpl impl_;
};

std::string because(et::Error error, const LogCapture& log) {
  const std::string text = log.text();
  return std::string(et::to_string(error)) + (text.empty() ? "" : " (" + text + ")");
}

std::string checked(std::string path) {
  check_pte_file(path);
  return path;
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

PteModule::PteModule(std::string path, std::string backend_id, std::uintmax_t one_thread_below)
    : path_(checked(std::move(path))),
      backend_id_(std::move(backend_id)),
      file_(path_),
      one_thread_(file_.size() < one_thread_below),
      cache_key_(mint_cache_key()),
      slot_(std::make_shared<CacheSlot>()) {
  install_log_capture();
  const LogCapture log;
  module_ = std::make_unique<Module>(path_, Module::LoadMode::Mmap);
  et::BackendOptions<1> options;
  et::LoadBackendOptionsMap options_map;
  if (options.set_option(kCacheKeyOption, cache_key_.c_str()) != et::Error::Ok ||
      options_map.set_options(backend_id_.c_str(), options.view()) != et::Error::Ok) {
    fail("backend id '" + backend_id_ + "' or cache key '" + cache_key_ + "' cannot be passed to ExecuTorch");
  }
  const et::Error error = module_->load(options_map, et::Program::Verification::InternalConsistency);
  if (error != et::Error::Ok) {
    fail("damaged: " + because(error, log) + ". Copy it again or export the model again");
  }
  read_architecture();
}

void PteModule::load(std::vector<std::string> methods) {
  methods_ = std::move(methods);
  check_backends();
  CacheRegistry::instance().install(cache_key_, slot_);
  const ForwardGate gate;
  load_methods();
}

void PteModule::load_methods() {
  file_.check_unchanged();
  const OneThread alone(one_thread_);
  for (const std::string& method : methods_) {
    const LogCapture log;
    module_->unload_method(method);
    const et::Error error = module_->load_method(method);
    if (error != et::Error::Ok) {
      const std::string reason = slot_->error ? message_of(std::exchange(slot_->error, nullptr)) : because(error, log);
      fail("its " + method + " cannot be loaded: " + reason + ". " + kReexport);
    }
  }
  pool_generation_ = pool_generation();
}

PteModule::~PteModule() {
  module_.reset();
  CacheRegistry::instance().erase(cache_key_);
}

void PteModule::fail(const std::string& what) const {
  std::string text = what;  // may quote a damaged file
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  throw ProgramError(path_ + ": " + text);
}

std::vector<std::int64_t> PteModule::read_ints(const std::string& method) {
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

// Four integers a layer: K/V heads, the width of keys, that of values, and what it keeps (Kept); five where there are
// states: heads of values for each of keys.
void PteModule::read_shapes(const std::vector<std::int64_t>& values) {
  constexpr std::int64_t most = 1 << 16;
  const std::size_t width = architecture_.schema_version >= kStatesVersion ? 5 : 4;
  if (values.size() != width * static_cast<std::size_t>(architecture_.n_layers)) {
    fail("its constant kv_cache.shapes has " + std::to_string(values.size()) + " integers for " +
         std::to_string(architecture_.n_layers) + " layers. " + kReexport);
  }
  for (std::size_t i = 0; i < values.size(); i += width) {
    for (std::size_t j = i; j < i + width; ++j) {
      if (j == i + 3) continue;
      if (values[j] < 1 || values[j] > most) fail("a layer shape of " + std::to_string(values[j]) + " is impossible");
    }
    if (values[i + 3] < 0 || values[i + 3] > kMostKept) fail("a layer that keeps " + std::to_string(values[i + 3]));
    architecture_.shapes.push_back({static_cast<int>(values[i]), static_cast<int>(values[i + 1]),
                                    static_cast<int>(values[i + 2]), static_cast<Kept>(values[i + 3]),
                                    width == 5 ? static_cast<int>(values[i + 4]) : 1});
  }
}

void PteModule::read_architecture() {
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
  if (architecture_.schema_version < kSchemaVersion || architecture_.schema_version > kStatesVersion) {
    fail("its cache schema has version " + std::to_string(architecture_.schema_version) + " and this runtime reads " +
         std::to_string(kSchemaVersion) + " to " + std::to_string(kStatesVersion) +
         ". Install the agentkv that exported it, or export the model again");
  }
  architecture_.n_layers = read_one("n_layers", 1, 1 << 16);
  architecture_.n_kv_heads = read_one("n_kv_heads", 1, 1 << 16);
  architecture_.head_dim = read_one("head_dim", 1, 1 << 16);
  if (architecture_.schema_version >= kShapesVersion) read_shapes(read_ints("kv_cache.shapes"));
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

void PteModule::refuse(const std::string& what, const std::string& expected) const {
  fail(what + ", but agentkv runs " + expected + ". " + kReexport);
}

std::size_t PteModule::check_method(const std::string& method, std::size_t inputs, const std::string& expected) {
  const auto meta = module_->method_meta(method);
  if (!meta.ok()) fail("it has no method " + method + ". " + kReexport);
  if (meta->num_inputs() != inputs) {
    refuse("its " + method + " takes " + std::to_string(meta->num_inputs()) + " inputs", expected);
  }
  if (meta->num_outputs() < 1) refuse("its " + method + " returns nothing", expected);
  return meta->num_outputs();
}

std::int32_t PteModule::input_rows(const std::string& method, std::size_t input, const std::string& expected) {
  const auto tensor = module_->method_meta(method)->input_tensor_meta(input);
  if (!tensor.ok() || tensor->scalar_type() != ScalarType::Long || tensor->sizes().size() != 1) {
    refuse("input " + std::to_string(input) + " of its " + method + " is not a row of int64", expected);
  }
  return tensor->sizes()[0];
}

MatrixInfo PteModule::input_matrix(const std::string& method, std::size_t input, const std::string& expected) {
  const auto tensor = module_->method_meta(method)->input_tensor_meta(input);
  if (!tensor.ok() || tensor->scalar_type() != ScalarType::Float || tensor->sizes().size() != 2) {
    refuse("input " + std::to_string(input) + " of its " + method + " is not a matrix of float32", expected);
  }
  return {tensor->sizes()[0], tensor->sizes()[1], tensor->is_memory_planned()};
}

MatrixInfo PteModule::output_matrix(const std::string& method, std::size_t output, const std::string& expected) {
  const auto tensor = module_->method_meta(method)->output_tensor_meta(output);
  if (!tensor.ok() || tensor->scalar_type() != ScalarType::Float || tensor->sizes().size() != 2) {
    refuse("output " + std::to_string(output) + " of its " + method + " is not a matrix of float32", expected);
  }
  return {tensor->sizes()[0], tensor->sizes()[1], tensor->is_memory_planned()};
}

void PteModule::check_backends() {
  const auto first = module_->method_meta(methods_.front());
  if (!first->uses_backend(backend_id_.c_str())) {
    std::set<std::string> names;
    for (std::size_t i = 0; i < first->num_backends(); ++i) names.insert(*first->get_backend_name(i));
    std::string used;
    for (const std::string& name : names) used += (used.empty() ? "" : ", ") + name;
    fail("it holds nothing for the backend " + backend_id_ + ", only for: " + (used.empty() ? "none" : used) +
         ". Export the model again for this backend");
  }
  for (const std::string& method : methods_) {
    const auto meta = module_->method_meta(method);
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
}

void PteModule::run(const std::string& method, std::shared_ptr<ByteLayer> layer, std::span<const InputRows> inputs,
                    std::span<const OutputRows> outputs, const RowAdapters* adapters) {
  const std::lock_guard lock(mutex_);
  const ForwardGate gate;
  if (pool_generation_ != pool_generation()) load_methods();
  const OneThread alone(one_thread_);
  const LogCapture log;
  const auto failed = [&](const std::string& reason) {
    return ForwardFailed(method + " of " + std::to_string(inputs.front().rows) + " tokens: " + reason);
  };
  struct SlotGuard {
    CacheSlot& slot;
    ~SlotGuard() {
      slot.layer.reset();
      slot.adapters = nullptr;
    }
  } guard{*slot_};
  slot_->layer = std::move(layer);
  slot_->adapters = adapters;
  slot_->error = nullptr;

  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const MatrixInfo& info = outputs[i].info;
    if (info.planned) continue;
    TensorView view(outputs[i].data, info.max_rows, info.width);
    if (module_->set_output(method, view.value(), i) != et::Error::Ok) {
      throw failed("output " + std::to_string(i) + " cannot be placed: " + log.text());
    }
  }
  std::deque<TensorView> views;
  std::vector<EValue> values;
  values.reserve(inputs.size());
  for (const InputRows& input : inputs)
    values.push_back(views.emplace_back(input.data, input.rows, input.width).value());
  const auto result = module_->execute(method, values);
  if (slot_->error) {
    const auto error = std::exchange(slot_->error, nullptr);
    try {
      std::rethrow_exception(error);
    } catch (const OutOfMemory&) {
      throw;  // which is no fault of the program
    } catch (...) {
      throw failed(message_of(error));
    }
  }
  if (!result.ok()) throw failed(because(result.error(), log));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto tensor = i < result->size() ? (*result)[i].tryToTensor() : et::Result<Tensor>(et::Error::NotFound);
    const std::size_t wanted = outputs[i].rows * static_cast<std::size_t>(outputs[i].info.width);
    if (!tensor.ok() || static_cast<std::size_t>(tensor->numel()) != wanted) {
      throw failed("the program returned output " + std::to_string(i) + " of a shape that was not asked for");
    }
    const float* data = tensor->const_data_ptr<float>();
    if (data != outputs[i].data) std::memcpy(outputs[i].data, data, wanted * sizeof(float));
  }
}

}  // namespace agentkv
