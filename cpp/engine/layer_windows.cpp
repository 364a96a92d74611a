// Layers with windows beside layers that look at everything: what is behind a window leaves the layers that have it.
#include <algorithm>
#include <vector>

#include "engine/branch_table.h"
#include "engine/job.h"
#include "engine/shared_blocks.h"

namespace agentkv {
namespace {

// Positions that are let go of together; and so far a branch may be rolled back before it is fed again.
constexpr Pos kBlock = SharedBlocks::kPositions;

// Rows from `length` - kBlock on look at no position below.
Pos first_seen(Pos length, Pos window) { return std::max(length - kBlock - window, 0); }

// Lengths that a branch can go back to are so far apart at least.
constexpr Pos kLeastApart = 512;

// Lengths below `length` whose windows stay, so that going back by n positions feeds 2 n again at most, or `apart`:
// multiples of 2^i `apart`, one of each, behind by that much. Each is among those of i - 1 until then.
std::vector<Pos> ways_back(Pos length, Pos apart) {
  std::vector<Pos> lengths{length / apart * apart};
  for (Pos step = apart; length / step >= 2; step *= 2) lengths.push_back((length / step - 1) * step);
  return lengths;
}

}  // namespace

// Looked at again as a branch gets longer: what others looked at then they may have left by now.
void BranchTable::discard_old(Branch& branch) noexcept {
  if (window_.groups.empty()) return;
  const Pos end = first_seen(branch.n_cached, window_.groups.front()) / kBlock * kBlock;
  if (end <= branch.discarded_to) return;
  try {
    for (std::size_t group = 0; group < window_.groups.size(); ++group) discard_old(branch, group);
    branch.discarded_to = end;
  } catch (const std::exception&) {  // there is no memory for it now
  }
}

void BranchTable::discard_old(const Branch& branch, std::size_t group) {
  const Pos window = window_.groups[group];
  const auto runs = cache_->seq_runs(branch.seq);
  SharedBlocks needed(first_seen(branch.n_cached, window));
  for (const auto& [id, other] : branches_) {
    if (other.get() == &branch) continue;
    needed.mark(runs, cache_->seq_runs(other->seq), first_seen(other->n_cached_then(), window));
    if (!other->job) continue;
    if (const Pos awaited = other->job->awaits(branch.id)) needed.mark(first_seen(awaited, window), awaited);
  }
  const Pos apart = std::max(4 * window_.groups.back(), kLeastApart);
  std::vector<Pos> lengths = ways_back(branch.n_cached, apart);
  lengths.push_back(branch.parts_at);
  for (const Pos length : lengths) needed.mark(std::max(length - window, 0), length);
  for (const RunList& kept : cache_->retained_ends(window + kBlock)) needed.mark(runs, kept, 0);
  needed.for_each_free(
      [&](Pos first, Pos last) { cache_->seq_discard(branch.seq, first, last, static_cast<std::uint8_t>(group + 1)); });
}

}  // namespace agentkv
