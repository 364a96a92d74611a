// Where each n-gram of a text occurred last: a hash table without deletion.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace agentkv {

// Open addressing with linear probing over keys that are hashes already. Entries of forgotten text stay until the table
// is laid out anew, which leaves them out: a look-up costs the same whatever the table has forgotten. Place is the
// value; a default one is none.
template <class Place>
class GramTable {
 public:
  // The place of a key, forgotten or not; a default one where there is none.
  Place find(std::uint64_t key) const { return slots_.empty() ? Place{} : slots_[at(key)].place; }

  // Sets the place of a key and returns the one before. alive(place): whether an entry is worth keeping.
  template <class Alive>
  Place exchange(std::uint64_t key, Place place, Alive&& alive) {
    if (4 * (used_ + 1) > 3 * slots_.size()) lay_out(alive);
    Slot& slot = slots_[at(key)];
    used_ += slot.place == Place{};
    slot.key = key;
    return std::exchange(slot.place, place);
  }

  std::size_t memory_bytes() const { return slots_.capacity() * sizeof(Slot); }

 private:
  struct Slot {
    std::uint64_t key = 0;
    Place place = {};
  };

  // The slot of a key, or the empty one where it belongs. There is one: a quarter of them is empty.
  std::size_t at(std::uint64_t key) const {
    const std::size_t mask = slots_.size() - 1;
    auto slot = static_cast<std::size_t>(key >> 32 ^ key) & mask;
    while (slots_[slot].place != Place{} && slots_[slot].key != key) slot = (slot + 1) & mask;
    return slot;
  }

  // At most two thirds are used then, so that the next time is a twelfth of the table away.
  template <class Alive>
  void lay_out(Alive&& alive) {
    const auto keep = [&](const Slot& slot) { return slot.place != Place{} && alive(slot.place); };
    used_ = static_cast<std::size_t>(std::count_if(slots_.begin(), slots_.end(), keep));
    const std::vector<Slot> before = std::exchange(slots_, std::vector<Slot>(std::bit_ceil(used_ + used_ / 2 + 64)));
    for (const Slot& slot : before) {
      if (keep(slot)) slots_[at(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;  // a power of two of them
  std::size_t used_ = 0;
};

}  // namespace agentkv
