#include "executorch/slot_backend.h"

#include <utility>

namespace agentkv {
namespace {

namespace et = ::executorch::runtime;

struct Handle {
  std::shared_ptr<CacheSlot> slot;
  std::unique_ptr<LoadedDelegate> delegate;
};

}  // namespace

SlotBackend::SlotBackend(std::string id, std::string title) : id_(std::move(id)), title_(std::move(title)) {}

void SlotBackend::register_once() {
  if (registered_) return;
  const et::Error result = et::register_backend({id_.c_str(), this});
  if (result != et::Error::Ok) {
    throw Error("ExecuTorch refused to register backend " + id_ + ": " + et::to_string(result));
  }
  registered_ = true;
}

std::shared_ptr<CacheSlot> SlotBackend::find_slot(et::BackendInitContext& context) const {
  const auto key = context.get_runtime_spec<const char*>(kCacheKeyOption);
  if (!key.ok()) {
    throw RegistryError(title_ + ": the program was loaded without the option " + kCacheKeyOption + " of backend " +
                        id_);
  }
  return CacheRegistry::instance().find(key.get());
}

et::Result<et::DelegateHandle*> SlotBackend::init(et::BackendInitContext& context, et::FreeableBuffer* processed,
                                                  et::ArrayRef<et::CompileSpec>) const {
  std::shared_ptr<CacheSlot> slot;
  try {
    slot = find_slot(context);
    auto handle = std::make_unique<Handle>(slot, load(context, *processed));
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

et::Error SlotBackend::execute(et::BackendExecutionContext&, et::DelegateHandle* raw,
                               et::Span<et::EValue*> args) const {
  auto& handle = *static_cast<Handle*>(raw);
  try {
    handle.delegate->execute(*handle.slot, args);
    return et::Error::Ok;
  } catch (...) {
    handle.slot->error = std::current_exception();
    return et::Error::DelegateInvalidHandle;
  }
}

void SlotBackend::destroy(et::DelegateHandle* raw) const { delete static_cast<Handle*>(raw); }

}  // namespace agentkv
