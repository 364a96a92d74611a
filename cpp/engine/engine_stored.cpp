// Branches that come back into the cache, and those that are set aside.
#include "core/errors.h"
#include "core/message.h"
#include "engine/engine.h"

namespace agentkv {

std::vector<BranchId> Engine::restore(std::optional<PinId> pin, std::span<const StoredBranch> stored) {
  std::optional<SeqId> seq;
  if (pin) seq = pinned_.sequence(*pin);
  branches_.check_room(stored.size());
  for (const StoredBranch& image : stored) {
    vocabulary_.check(image.log);
    check_positions({}, image.log.size());
    require<InvalidRange>(image.next_logits.empty() || std::ssize(image.next_logits) == info_.vocab_size,
                          image.next_logits.size(), " logits, but the vocabulary has ", info_.vocab_size);
    const Output& output = image.output;
    require<InvalidRange>(0 <= output.began && output.began <= output.end && output.end <= std::ssize(image.log),
                          "an output at [", output.began, ", ", output.end, ") of ", image.log.size(), " tokens");
  }
  std::vector<BranchId> ids;
  try {
    for (const StoredBranch& image : stored) {
      LogitsRow row = image.next_logits.empty() ? nullptr : context_.rows.copy(image.next_logits);
      ids.push_back(branches_.restore(image, seq, std::move(row)).id);
    }
  } catch (...) {
    for (const BranchId id : ids) close(id);
    throw;
  }
  for (const BranchId id : ids) branches_.tell(branches_.at(id));
  return ids;
}

void Engine::offload(BranchId id, PinId pin) {
  Branch& branch = branches_.idle(id);
  branches_.offload(branch, pinned_.end_of(pin, branch));
}

void Engine::reload(BranchId id, PinId pin) {
  Branch& branch = branches_.at(id);
  require<InvalidRange>(branch.aside.has_value(), "branch ", id, " is not set aside");
  branches_.reload(branch, pinned_.sequence(pin));
}

void Engine::set_stream(BranchId id, std::uint64_t rng_stream, std::uint32_t forks) {
  Branch& branch = branches_.idle(id);
  branch.rng_stream = rng_stream;
  branch.forks = forks;
}

}  // namespace agentkv
