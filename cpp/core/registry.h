// The rendezvous of a loaded program with its cache: the program's delegate looks its slot up by key when it is
// loaded, and finds in the slot the byte layer of whichever session runs it next.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/byte_layer.h"

namespace agentkv {

// What some rows of a forward add to linear layers; of a kind that the backend knows.
struct RowAdapters {
  virtual ~RowAdapters() = default;
};

// Belongs to one loaded program and is guarded by whatever serialises that program's executes: `layer` is swapped
// between them, never during one. Registry, session and delegate share its ownership.
struct CacheSlot {
  std::shared_ptr<ByteLayer> layer;       // what the next execute sees; null: no session is active
  const RowAdapters* adapters = nullptr;  // of the rows of the execute; null: no row has one
  std::exception_ptr error;               // what a delegate caught, for the runner to rethrow
};

// Process-wide, from any thread.
class CacheRegistry {
 public:
  static CacheRegistry& instance();

  void install(const std::string& key, std::shared_ptr<CacheSlot> slot);  // throws RegistryError on a key in use
  void erase(const std::string& key) noexcept;                            // harmless for an unknown key
  std::shared_ptr<CacheSlot> find(const std::string& key) const;          // throws RegistryError on an unknown key
  std::vector<std::string> keys() const;                                  // sorted

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<CacheSlot>> slots_;
};

// A key that nothing in this process has used before.
std::string mint_cache_key();

}  // namespace agentkv
