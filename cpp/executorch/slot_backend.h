// The frame of our ExecuTorch backends: binds what it loads to the program's cache slot, and keeps in the slot what is
// thrown.
#pragma once

#include <executorch/runtime/backend/interface.h>

#include <memory>
#include <string>

#include "core/errors.h"
#include "core/registry.h"

namespace agentkv {

// The load-time option, under the backend's name, that says under which key CacheRegistry holds the program's slot.
inline constexpr char kCacheKeyOption[] = "cache_key";

// One delegate of a loaded program.
class LoadedDelegate {
 public:
  virtual ~LoadedDelegate() = default;
  // One execute over the layer in the slot. `args` are the inputs, then the outputs.
  virtual void execute(CacheSlot& slot, executorch::runtime::Span<executorch::runtime::EValue*> args) = 0;
};

// An exception of a delegate never crosses ExecuTorch: it is kept in the slot's `error`, and the call returns an error
// code. A program that is loaded without a slot has nowhere to keep it, so that case is logged instead.
class SlotBackend : public executorch::runtime::BackendInterface {
 public:
  // `id` is ExecuTorch's name of it, `title` what its messages begin with.
  SlotBackend(std::string id, std::string title);

  // With ExecuTorch, under its id. Throws Error when ExecuTorch refuses.
  void register_once();

  bool is_available() const override { return true; }
  executorch::runtime::Result<executorch::runtime::DelegateHandle*> init(
      executorch::runtime::BackendInitContext& context, executorch::runtime::FreeableBuffer* processed,
      executorch::runtime::ArrayRef<executorch::runtime::CompileSpec>) const final;
  executorch::runtime::Error execute(executorch::runtime::BackendExecutionContext&,
                                     executorch::runtime::DelegateHandle* handle,
                                     executorch::runtime::Span<executorch::runtime::EValue*> args) const final;
  void destroy(executorch::runtime::DelegateHandle* handle) const final;

 private:
  // Reads what the exporter packed; `processed` may be freed afterwards.
  virtual std::unique_ptr<LoadedDelegate> load(executorch::runtime::BackendInitContext& context,
                                               const executorch::runtime::FreeableBuffer& processed) const = 0;
  std::shared_ptr<CacheSlot> find_slot(executorch::runtime::BackendInitContext& context) const;

  const std::string id_;
  const std::string title_;
  bool registered_ = false;
};

// The byte layer of the session that executes. Throws RegistryError where there is none, or one of another backend.
template <class Layer>
Layer& active_layer(const CacheSlot& slot, const std::string& title) {
  if (slot.layer == nullptr) throw RegistryError(title + ": no cache session is active on this program");
  auto* layer = dynamic_cast<Layer*>(slot.layer.get());
  if (layer == nullptr) throw RegistryError(title + ": the active cache belongs to another backend");
  return *layer;
}

}  // namespace agentkv
