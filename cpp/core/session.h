// A cache in use: what a caller holds, and what makes a program see it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/builders.h"
#include "core/registry.h"

namespace agentkv {

// RAII. A session made with a key installs a slot of its own under it and erases it on every exit path. A session made
// with a slot shares the one that a loaded program reads already, so that many sessions run over weights loaded once:
// activate() puts this session's byte layer into the slot before an execute, and destruction takes it out.
template <class Face>
class CacheSession {
 public:
  CacheSession(BuiltCache<Face> built, std::string key)
      : built_(std::move(built)), slot_(std::make_shared<CacheSlot>()), key_(std::move(key)) {
    slot_->layer = built_.layer;
    CacheRegistry::instance().install(key_, slot_);
  }

  CacheSession(BuiltCache<Face> built, std::shared_ptr<CacheSlot> slot)
      : built_(std::move(built)), slot_(std::move(slot)) {
    if (!slot_) throw RegistryError("a session needs the slot of a loaded program");
  }

  CacheSession(CacheSession&& other) noexcept
      : built_(std::move(other.built_)), slot_(std::move(other.slot_)), key_(std::exchange(other.key_, {})) {}
  CacheSession& operator=(CacheSession&&) = delete;

  // Runs where the program's executes run: it takes the layer out of the slot.
  ~CacheSession() {
    if (!slot_) return;
    if (!key_.empty()) CacheRegistry::instance().erase(key_);
    if (slot_->layer == built_.layer) slot_->layer.reset();
  }

  Face& cache() const { return *built_.cache; }
  const std::shared_ptr<Face>& shared_cache() const { return built_.cache; }
  const std::shared_ptr<ByteLayer>& layer() const { return built_.layer; }
  const std::shared_ptr<CacheSlot>& slot() const { return slot_; }
  const std::string& key() const { return key_; }  // empty for a session over a program's slot

  void activate() { slot_->layer = built_.layer; }

 private:
  BuiltCache<Face> built_;
  std::shared_ptr<CacheSlot> slot_;
  std::string key_;
};

using DecodeSession = CacheSession<ContiguousCache>;
using SeqSession = CacheSession<SeqCache>;
using TreeSession = CacheSession<TreeSeqCache>;

// `where` is a key (std::string, such as mint_cache_key()) or the std::shared_ptr<CacheSlot> of a loaded program.
// Throw RegistryError for a backend without such a builder or a key in use.
template <class Where>
DecodeSession make_decode_session(std::string_view backend_id, const CacheConfig& config, Where where) {
  return DecodeSession(CacheBuilderRegistry::instance().build<ContiguousCache>(backend_id, config), std::move(where));
}

template <class Where>
SeqSession make_seq_session(std::string_view backend_id, const CacheConfig& config, Where where) {
  return SeqSession(CacheBuilderRegistry::instance().build<SeqCache>(backend_id, config), std::move(where));
}

template <class Where>
TreeSession make_tree_session(std::string_view backend_id, const CacheConfig& config, Where where) {
  return TreeSession(CacheBuilderRegistry::instance().build<TreeSeqCache>(backend_id, config), std::move(where));
}

}  // namespace agentkv
