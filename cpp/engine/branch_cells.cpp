// Which cells branches have: what they lend and leave to others, and what they let go and feed again.
#include <algorithm>

#include "core/errors.h"
#include "core/message.h"
#include "engine/branch_table.h"
#include "engine/shared_blocks.h"

namespace agentkv {
namespace {

// Cells that a window leaves behind are given back so many at a time; and where some are fed again, a branch may be
// rolled back so far once more.
constexpr Pos kLetGo = 64;

// Of a prompt that is longer than a window, so many tokens are fed at once at least.
constexpr std::int64_t kLeastChunk = 16;

}  // namespace

// What is gone is computed anew, so retention does without what it cannot take.
void BranchTable::retain(const Branch& branch) noexcept {
  if (branch.n_cached == 0 || !branch.lends) return;
  try {
    const Pos held = std::min(unbroken(branch), branch.length());  // a job may fail before its tokens are in the log
    std::vector<Token> room;
    const auto tokens = std::span(branch.log).first(static_cast<std::size_t>(held));
    cache_->seq_retain(branch.seq, keys_.of(tokens, branch.adapters, room));
  } catch (const std::exception&) {
  }
}

BranchTable::Reused BranchTable::reuse_prefix(Branch& branch, std::span<const Token> tokens) {
  if (tokens.empty()) return {};
  const auto wanted = tokens.first(tokens.size() - 1);
  const Branch* best = nullptr;
  std::size_t longest = 0;
  Pos parts_at = 0;
  for (const auto& [id, other] : branches_) {
    if (!other->lends) continue;
    const std::size_t limit = std::min(static_cast<std::size_t>(other->n_cached), wanted.size());
    if (limit <= longest) continue;
    const auto end = tokens.begin() + static_cast<std::ptrdiff_t>(limit);
    const auto equal = std::mismatch(tokens.begin(), end, other->log.begin()).first - tokens.begin();
    const Pos alike = branch.adapters.same(other->adapters, static_cast<Pos>(equal));
    parts_at = std::max(parts_at, alike);
    const auto same = static_cast<std::size_t>(lendable(*other, alike));
    if (same > longest) {
      longest = same;
      best = other.get();
    }
  }
  // Cells that are live are shared, and only what lies behind them is recalled: together they take the fewest cells.
  const auto live = static_cast<Pos>(longest);
  std::vector<Token> room;
  const auto keys = keys_.of(wanted, branch.adapters, room);
  const Pos all = std::max(live, cache_->find_retained(keys));
  branch.log.assign(wanted.begin(), wanted.begin() + all);
  if (best) share(*best, branch, live);
  if (best) branch.exact_from = best->exact_from;
  if (all > live) branch.n_cached = cache_->seq_recall(branch.seq, keys);
  const Pos usable = covered(branch);  // what was recalled may end where a window lacks something
  cut(branch, usable);
  branch.log.resize(static_cast<std::size_t>(usable));
  branch.parts_at = std::max(parts_at, all);
  return {usable, usable - live};
}

Pos BranchTable::reusable(std::span<const Token> tokens, AdapterId adapter) {
  Branch& probe = add({});
  probe.adapters.set(0, adapter);
  const Pos length = reuse_prefix(probe, tokens).tokens;
  close(probe);
  --next_id_;  // nobody has heard of it
  return length;
}

Pos BranchTable::take_pinned(Branch& branch, SeqId held, std::span<const Token> tokens) {
  const Pos length = std::min(cache_->seq_len(held), static_cast<Pos>(tokens.size()) - 1);
  if (length <= branch.n_cached) return branch.n_cached;
  std::vector<Piece> rows;
  for (const Run& run : overlapping(cache_->seq_runs(held), branch.n_cached, length)) {
    const Run part = clip(run, branch.n_cached, length);
    rows.push_back({part.position, part.position, part.length});
  }
  branch.log.assign(tokens.begin(), tokens.begin() + length);
  cache_->seq_map(held, branch.seq, rows);
  branch.n_cached = length;
  cut(branch, covered(branch));
  branch.log.resize(static_cast<std::size_t>(branch.n_cached));
  return branch.n_cached;
}

// Cells that others have, too, have none before them that are the branch's alone: such cells could not be given up.
Pos BranchTable::take_more(Branch& branch, const Branch* src, Pos length, std::span<const Token> keys, Cell promised) {
  // Layers with windows may have left cells before `length` already: no more than the branch has is no gain.
  if (const Pos lent = src ? lendable(*src, length) : 0; lent > branch.n_cached) {
    if (branch.n_cached > 0) cache_->seq_rm(branch.seq);
    branch.n_cached = 0;
    share(*src, branch, lent);
    branch.quantized_to = std::min(branch.quantized_to, src->quantized_to);
    branch.discarded_to = std::min(branch.discarded_to, src->discarded_to);
  }
  const bool all_shared = cache_->seq_shared(branch.seq) == branch.n_cached;
  const Pos recalled = all_shared ? cache_->find_retained(keys) - branch.n_cached : 0;
  if (0 < recalled && recalled <= free_cells() - promised) branch.n_cached = cache_->seq_recall(branch.seq, keys);
  cut(branch, covered(branch));
  return branch.n_cached;
}

void BranchTable::cut(Branch& branch, Pos length) {
  if (length == branch.n_cached) return;
  cache_->seq_rm(branch.seq, length);
  branch.n_cached = length;
  speculation_.truncated(branch.id, length);
}

void BranchTable::take_last(Branch& branch) {
  if (branch.n_cached == branch.length()) drop_cells(branch, branch.length() - 1);
}

// K and V of a row are a function of what lies `reach` before it. So where a window let cells go that are needed again,
// feeding begins that far back: its first rows lack what they look at, and none of those that count look at them.
void BranchTable::lose_offloaded(Branch& branch) {
  cut_offloaded(branch, 0);
  cut_to_basis(branch, branch.n_cached);
}

void BranchTable::cut_offloaded(Branch& branch, Pos length) {
  for (std::vector<Piece>& rows : branch.aside) {
    std::erase_if(rows, [length](const Piece& piece) { return piece.to >= length; });
    if (!rows.empty()) rows.back().length = std::min(rows.back().length, length - rows.back().to);
  }
  branch.next_logits.reset();
  speculation_.truncated(branch.id, std::max(length, branch.n_cached));
}

void BranchTable::drop_cells(Branch& branch, Pos length, bool recalls) {
  // Where rows look at less than all that came before, those that are kept elsewhere may lack what is looked at then.
  const bool cuts = window_.length == 0 && window_.groups.empty() && !window_.states && !recalls;
  const bool loses = length < branch.n_cached_then() && branch.n_cached < branch.n_cached_then();
  if (loses) cut_offloaded(branch, cuts ? length : 0);
  // Cut to before what is being fed again, the rows that are to come lack what those that are fed for it lack.
  const bool inexact = branch.exact_from > std::max(length - window_.length + 1, window_.sinks);
  if (branch.n_cached <= length && !recalls && !inexact && (cuts || !loses)) return;
  cut_to_basis(branch, length);
}

void BranchTable::cut_to_basis(Branch& branch, Pos length) {
  length = std::min(length, branch.n_cached);
  const Coverage held = coverage(branch);
  Pos kept = held.covered(length);
  Pos exact_from = kept <= window_.sinks ? 0 : branch.exact_from;
  if (const Pos restart = length - kLetGo - window_.reach;
      kept < length && window_.length > 0 && restart > kept &&
      held.first_missing(std::min(window_.sinks, kept)) >= window_.sinks) {
    kept = restart;
    exact_from = length - kLetGo - window_.length + 1;
  }
  if (kept == branch.n_cached) return;
  cache_->seq_rm(branch.seq, kept);
  branch.n_cached = kept;
  branch.quantized_to = std::min(branch.quantized_to, kept);
  branch.discarded_to = std::min(branch.discarded_to, kept);
  branch.exact_from = exact_from;
  speculation_.truncated(branch.id, kept);
}

Pos BranchTable::covered(const Branch& branch) const { return coverage(branch).covered(branch.n_cached); }

Pos BranchTable::storable(const Branch& branch) const {
  const auto runs = cache_->seq_runs(branch.seq);
  for (Pos length = covered(branch);;) {
    const auto parts = overlapping(runs, 0, length);
    const Pos end = parts.empty() ? 0 : std::min(end_position(parts.back()), length);
    if (end == length) return length;
    length = coverage(branch).covered(end);
  }
}

Coverage BranchTable::coverage(const Branch& branch) const {
  return {branch, cache_->seq_runs(branch.seq), cache_->lacks(), window_};
}

Cell BranchTable::n_exclusive_cells(const Branch& branch, Pos first) const {
  Cell count = 0;
  first = std::max(first, cache_->seq_shared(branch.seq));
  for (const Run& run : cache_->seq_runs(branch.seq)) count += std::clamp(end_position(run) - first, 0, run.length);
  return count;
}

Cell BranchTable::cells_of(std::span<const BranchId> ids) const {
  std::vector<bool> seen(static_cast<std::size_t>(cache_->capacity()));
  for (const BranchId id : ids) {
    for (const Run& run : cache_->seq_runs(at(id).seq)) std::fill_n(seen.begin() + run.cell, run.length, true);
  }
  return static_cast<Cell>(std::count(seen.begin(), seen.end(), true));
}

Pos BranchTable::lendable(const Branch& branch, Pos length) const {
  for (const Forgotten& gone : branch.forgotten) length = std::min(length, gone.first);
  return coverage(branch).covered(length);
}

Pos BranchTable::unbroken(const Branch& branch) const {
  Pos end = 0;
  for (const Run& run : cache_->seq_runs(branch.seq)) {
    if (run.position != end) break;
    end = end_position(run);
  }
  return std::min(end, branch.n_cached);
}

void BranchTable::forget(Branch& branch, Pos first, Pos last, bool for_room) {
  require<InvalidRange>(0 <= first && first <= last && last < branch.length(), "forgetting positions [", first, ", ",
                        last, ") of branch ", branch.id, ", which has ", branch.length(),
                        " tokens; all but the last can be forgotten");
  require<InvalidRange>(!window_.states,
                        "forgetting positions of a model with layers whose "
                        "states hold all that came before: roll the branch back instead");
  if (first == last) return;
  for (const Forgotten& gone : branch.forgotten) {
    if (gone.first <= first && last <= gone.last && (gone.for_room || !for_room)) return;
  }
  branch.forgotten.push_back({first, last, branch.length(), for_room});
  try {
    drop_cells(branch, branch.length() - 1);  // what follows is computed from the last token
    forget_due(branch);
  } catch (...) {
    branch.forgotten.pop_back();
    throw;
  }
  branch.next_logits.reset();
  branch.made = {};
}

void BranchTable::replace(Branch& branch, Pos first, Pos last, std::span<const Token> tokens) {
  require<InvalidRange>(0 <= first && first <= last && last < branch.length(), "replacing tokens [", first, ", ", last,
                        ") of branch ", branch.id, ", which has ", branch.length(),
                        "; all but the last can be replaced");
  const Pos shift = static_cast<Pos>(tokens.size()) - (last - first);
  std::vector<Token> log(branch.log.begin(), branch.log.begin() + first);
  log.insert(log.end(), tokens.begin(), tokens.end());
  log.insert(log.end(), branch.log.begin() + last, branch.log.end());
  std::vector<Forgotten> forgotten;
  for (const Forgotten& gone : branch.forgotten) {
    if (gone.first < first) {
      forgotten.push_back({gone.first, std::min(gone.last, first), std::min(gone.at, first + 1), gone.for_room});
    }
  }
  branch.forgotten.swap(forgotten);
  try {
    drop_cells(branch, first);
  } catch (...) {
    branch.forgotten.swap(forgotten);
    throw;
  }
  branch.log.swap(log);
  branch.adapters.replace(first, last, static_cast<Pos>(tokens.size()));
  branch.lineage.cut(first, ++epochs_);
  branch.told = std::min(branch.told, first);
  branch.next_logits.reset();
  branch.made = {};
  Output& output = branch.output;
  if (output.began >= last) {
    output.began += shift;
    output.end += shift;
  } else if (output.end > first) {  // some of it is gone: nothing goes on with it
    output = {};
  }
}

void BranchTable::forget_due(Branch& branch) {
  for (const Forgotten& gone : branch.forgotten) {
    if (gone.since() == branch.n_cached) cache_->seq_forget(branch.seq, gone.first, gone.last);
  }
}

std::size_t BranchTable::feedable(const Branch& branch) const {
  Pos end = branch.length();
  for (const Forgotten& gone : branch.forgotten) {
    if (gone.since() > branch.n_cached) end = std::min(end, gone.since());
  }
  return static_cast<std::size_t>(end - branch.n_cached);
}

void BranchTable::let_go(Branch& branch) {
  if (window_.length == 0) return;
  const auto runs = cache_->seq_runs(branch.seq);
  const std::size_t at = find_run(runs, window_.sinks);
  if (at == runs.size()) return;
  const Pos first = std::max(runs[at].position, window_.sinks);
  const Pos end = branch.n_cached - window_.length;  // the last row may be fed again
  if (end - first >= kLetGo) cache_->seq_forget(branch.seq, first, end);
}

void BranchTable::quantize_old(Branch& branch) noexcept {
  constexpr Pos block = SharedBlocks::kPositions;
  const Pos end = quantize_after_ < 0 ? 0 : (branch.n_cached - quantize_after_) / block * block;
  if (end <= branch.quantized_to) return;
  try {
    SharedBlocks newest(end);
    const auto mine = cache_->seq_runs(branch.seq);
    for (const auto& [id, other] : branches_) {
      if (other.get() == &branch) continue;
      const Pos length = other->offloaded() ? other->length() : other->n_cached;
      newest.mark(mine, cache_->seq_runs(other->seq), std::max(length - quantize_after_, 0));
    }
    newest.for_each_free([&](Pos first, Pos last) { cache_->seq_quantize(branch.seq, first, last); });
    branch.quantized_to = end;
  } catch (const std::exception&) {  // there is no memory for it now
  }
}

Cell BranchTable::cells_for(const Branch& branch, std::size_t tokens) const {
  const auto all = static_cast<std::int64_t>(tokens);
  if (window_.length == 0) return static_cast<Cell>(all);
  std::int64_t held = 0;
  for (const Run& run : cache_->seq_runs(branch.seq)) held += run.length;
  const std::int64_t most = std::int64_t{window_.sinks} + window_.length + kLetGo;  // that it ever has between chunks
  return static_cast<Cell>(std::min(all, std::max(most - held, std::int64_t{0}) + kLeastChunk));
}

}  // namespace agentkv
