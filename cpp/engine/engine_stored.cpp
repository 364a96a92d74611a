// Branches that come back into the cache, and those that are set aside.
#include <algorithm>

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
    Pos since = 0;
    for (const AdapterSpans::Span& span : image.adapters.spans()) {
      check_adapter(span.adapter);
      require<InvalidRange>(since <= span.from && span.from <= std::ssize(image.log), "adapter ", span.adapter,
                            " from position ", span.from, " on, of ", image.log.size(), " tokens");
      since = span.from + 1;
    }
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

void Engine::offload(std::span<const BranchId> ids, PinId pin) {
  std::vector<std::vector<Piece>> rows;
  std::vector<bool> found(static_cast<std::size_t>(branches_.cache().seq_len(pinned_.sequence(pin))), false);
  for (const BranchId id : ids) {
    rows.push_back(pinned_.end_of(pin, branches_.resting(id)));
    for (const Piece& piece : rows.back()) std::fill_n(found.begin() + piece.from, piece.length, true);
  }
  require<InvalidRange>(std::find(found.begin(), found.end(), false) == found.end(), "a branch went on since pin ", pin,
                        " was taken");
  for (std::size_t i = 0; i < ids.size(); ++i) branches_.offload(branches_.at(ids[i]), std::move(rows[i]));
}

void Engine::reload(BranchId id, std::optional<PinId> pin) {
  Branch& branch = branches_.at(id);
  require<InvalidRange>(branch.offloaded(), "branch ", id, " is not offloaded");
  const SeqId seq = pin ? pinned_.sequence(*pin) : SeqId{-1};
  if (!pin) branches_.lose_offloaded(branch);
  branches_.reload(branch, seq);
}

Pos Engine::n_offloaded(BranchId id) {
  const Branch& branch = branches_.at(id);
  Pos count = 0;
  if (branch.offloaded()) {
    for (const Piece& piece : branch.aside.back()) count += piece.length;
  }
  return count;
}

std::vector<BranchId> Engine::sharers(BranchId id) {
  const Branch& branch = branches_.at(id);
  const auto mine = branches_.cache().seq_runs(branch.seq);
  std::vector<BranchId> out;
  if (mine.empty()) return out;
  const Cell last = mine.back().cell + mine.back().length - 1;
  for (const auto& [other, held] : branches_.all()) {
    for (const Run& run : branches_.cache().seq_runs(held->seq)) {
      if (run.cell <= last && last < run.cell + run.length) out.push_back(other);
    }
  }
  return out;
}

void Engine::set_stream(BranchId id, std::uint64_t rng_stream, std::uint32_t forks) {
  Branch& branch = branches_.idle(id);
  branch.rng_stream = rng_stream;
  branch.forks = forks;
}

}  // namespace agentkv
