#include "engine/branch_table.h"

#include <algorithm>
#include <utility>

#include "core/check_owners.h"
#include "core/errors.h"
#include "core/message.h"
#include "engine/job.h"

namespace agentkv {
namespace {

std::shared_ptr<TreeSeqCache> checked(std::shared_ptr<TreeSeqCache> cache) {
  if (!cache) throw InvalidEngine("the engine needs a cache");
  return cache;
}

}  // namespace

BranchTable::BranchTable(std::shared_ptr<TreeSeqCache> cache, std::int32_t max_branches, Token vocab_size,
                         Speculation& speculation, Window window, Pos quantize_after)
    : cache_(checked(std::move(cache))),
      speculation_(speculation),
      window_(window),
      quantize_after_(quantize_after),
      keys_(vocab_size),
      sequences_(cache_) {
  if (max_branches < 1 || max_branches > cache_->max_sequences()) {
    throw InvalidEngine(error_text("max_branches is ", max_branches, ", but must be from 1 to the ",
                                   cache_->max_sequences(), " sequences of the cache"));
  }
  max_branches_ = static_cast<std::size_t>(max_branches);
}

Branch& BranchTable::at(BranchId id) { return const_cast<Branch&>(std::as_const(*this).at(id)); }

const Branch& BranchTable::at(BranchId id) const {
  const auto found = branches_.find(id);
  if (found == branches_.end()) throw BranchClosed(error_text("branch ", id, " is closed or never existed"));
  return *found->second;
}

Branch& BranchTable::jobless(BranchId id) {
  Branch& branch = at(id);
  if (branch.job) {
    throw BranchBusy(
        error_text("branch ", id, " has a job that still runs: wait for it, cancel it, or fork the branch"));
  }
  return branch;
}

Branch& BranchTable::resting(BranchId id) {
  Branch& branch = at(id);
  return branch.job && branch.job->waits_for_room() ? branch : jobless(id);
}

Branch& BranchTable::idle(BranchId id) {
  Branch& branch = jobless(id);
  check_here(branch);
  return branch;
}

Branch& BranchTable::still(BranchId id) {
  Branch& branch = resting(id);
  check_here(branch);
  return branch;
}

void BranchTable::check_here(const Branch& branch) {
  if (branch.offloaded()) throw BranchBusy(error_text("branch ", branch.id, " is set aside: bring it back first"));
}

void BranchTable::check_room(std::size_t n) const {
  const char* more = n == 1 ? " more branch was asked for, but " : " more branches were asked for, but ";
  require<TooManyBranches>(n <= max_branches_ - branches_.size(), n, more, branches_.size(), " of at most ",
                           max_branches_, " are live: close some first");
  require<TooManyBranches>(n <= sequences_.free(), n, more, sequences_.free(), " of ", cache_->max_sequences(),
                           " sequences are free: wait for what has the others, or close branches");
}

Branch& BranchTable::add(BranchState state) {
  check_room(1);
  auto branch = std::make_unique<Branch>(Branch{std::move(state)});
  branch->id = next_id_;
  branch->seq = *sequences_.take();
  branch->lineage.cut(branch->length(), ++epochs_);  // another branch may go on with the last one
  Branch& added = *branches_.emplace(next_id_, std::move(branch)).first->second;
  ++next_id_;
  return added;
}

Branch& BranchTable::create(std::uint64_t rng_stream) { return add({.rng_stream = rng_stream}); }

std::vector<BranchId> BranchTable::fork(Branch& parent, std::size_t n) {
  check_here(parent);
  check_room(n);
  std::vector<BranchId> children;
  children.reserve(n);
  const std::uint32_t forks = parent.forks;
  try {
    while (children.size() < n) children.push_back(fork(parent).id);
  } catch (...) {
    for (const BranchId child : children) close(at(child));
    parent.forks = forks;
    throw;
  }
  return children;
}

Branch& BranchTable::fork(Branch& parent) {
  Branch& child = sharing(parent, parent.child());
  ++parent.forks;
  return child;
}

Branch& BranchTable::copy(Branch& branch) { return sharing(branch, branch); }

Branch& BranchTable::sharing(const Branch& branch, BranchState state) {
  Branch& added = add(std::move(state));
  try {
    share(branch, added, branch.n_cached);
  } catch (...) {
    close(added);
    throw;
  }
  return added;
}

void BranchTable::rollback(Branch& branch, std::int64_t length, std::optional<Epoch> epoch, bool keep_forgotten) {
  if (epoch && (length > branch.length() || branch.lineage.at(static_cast<Pos>(length)) != *epoch)) {
    throw InvalidRollback(error_text("the mark at ", length, " tokens is of history that was rewritten: branch ",
                                     branch.id, " has ", branch.length(),
                                     " tokens, but not those any more; take a new mark"));
  }
  if (length < 0 || length > branch.length()) {
    throw InvalidRollback(error_text("cannot roll branch ", branch.id, " back to length ", length, ": it has ",
                                     branch.length(), " tokens"));
  }
  if (length == branch.length()) return;
  const auto kept = static_cast<Pos>(length);
  Pos cells = kept;
  bool recalls = false;
  std::vector<Forgotten> forgotten;
  for (Forgotten gone : branch.forgotten) {
    if (gone.at > kept) {
      recalls = recalls || !(gone.for_room || keep_forgotten);
      if (!gone.for_room && !keep_forgotten) continue;
      gone.at = kept;
      gone.last = std::min(gone.last, gone.since());
      cells = gone.since();  // the last token is computed without them from now on
    }
    if (gone.first < gone.last) forgotten.push_back(gone);
  }
  branch.forgotten.swap(forgotten);
  try {
    drop_cells(branch, std::max(cells, 0), recalls);
  } catch (...) {
    branch.forgotten.swap(forgotten);
    throw;
  }
  branch.roll_back(kept);
  branch.lineage.cut(static_cast<Pos>(length), ++epochs_);
  branch.told = std::min(branch.told, static_cast<Pos>(length));
  branch.made = {};
}

bool BranchTable::undo(JobId job, Pos kept) {
  const auto by_job = [job](const auto& entry) { return entry.second->made.by == job && !entry.second->job; };
  const auto found = std::find_if(branches_.begin(), branches_.end(), by_job);
  if (found == branches_.end()) return false;
  Branch& branch = *found->second;
  const UndoableTail made = std::exchange(branch.made, {});
  const Pos length = std::max(made.from + kept, 0);  // tokens may have left from before it
  if (length >= branch.length()) return true;
  const LogitsRow row = kept == 0 ? made.found : nullptr;
  if (!row) drop_cells(branch, std::max(length - 1, 0));  // its last token is pending, as it was then
  rollback(branch, length);
  branch.next_logits = row;
  tell(branch);
  return true;
}

void BranchTable::adopt(Branch& dst, const Branch& src) {
  if (&dst == &src) return;
  BranchState state = src;
  const auto same =
      std::mismatch(src.log.begin(), src.log.end(), dst.log.begin(), dst.log.end()).first - src.log.begin();
  state.lineage = dst.lineage;
  state.lineage.go_on_as(src.lineage, static_cast<Pos>(same));
  state.lineage.cut(src.length(), ++epochs_);
  dst.told = std::min(dst.told, static_cast<Pos>(same));
  dst.made = {};
  retain(dst);
  dst.forgotten.clear();
  drop_cells(dst, 0);
  dst.roll_back(0);
  share(src, dst, src.n_cached);
  static_cast<BranchState&>(dst) = std::move(state);
}

void BranchTable::close(Branch& branch) noexcept {
  // Whoever was told of the branch before is told its last words, too.
  if (branch.changed && branch.told > 0) last_words_.push_back(change_of(branch));
  retain(branch);
  speculation_.closed(branch.id);
  if (branch.changed) std::erase(changed_, branch.id);
  branches_.erase(branch.id);
}

Branch& BranchTable::restore(const StoredBranch& stored, std::optional<SeqId> held, LogitsRow next_logits) {
  const auto length = static_cast<Pos>(stored.log.size());
  std::int64_t cached = 0;
  for (const Piece& piece : stored.rows) {
    require<InvalidRange>(piece.to >= cached && piece.length >= 1, "rows for positions from ", piece.to, " on, after ",
                          cached, " positions");
    cached = std::int64_t{piece.to} + piece.length;
  }
  require<InvalidRange>(held || cached == 0, "rows for ", cached, " positions, and no pin that has them");
  require<InvalidRange>(cached <= length, "rows for ", cached, " positions of ", length, " tokens");
  require<InvalidRange>(!next_logits || (cached == length && length > 0), "logits after ", length, " tokens of which ",
                        cached, " have rows");
  Pos since = 1;
  for (const Forgotten& gone : stored.forgotten) {
    require<InvalidRange>(
        0 <= gone.first && gone.first < gone.last && gone.last < gone.at && gone.at <= length && gone.at >= since,
        "positions [", gone.first, ", ", gone.last, ") forgotten at ", gone.at, " of ", length, " tokens");
    since = gone.at;
  }
  Lineage lineage;
  lineage.cut(0, ++epochs_);
  Branch& branch = add({.log = stored.log,
                        .next_logits = std::move(next_logits),
                        .rng_stream = stored.rng_stream,
                        .forks = stored.forks,
                        .output = stored.output,
                        .lineage = std::move(lineage),
                        .adapters = stored.adapters,
                        .lends = false,  // whoever stored it may have stored anything
                        .forgotten = stored.forgotten,
                        .exact_from = stored.exact_from});
  try {
    if (cached > 0) cache_->seq_map(*held, branch.seq, stored.rows);
    branch.n_cached = static_cast<Pos>(cached);
    require<InvalidRange>(covered(branch) == branch.n_cached, "no row for position ", covered(branch), " of ", cached);
  } catch (...) {
    close(branch);
    throw;
  }
  return branch;
}

void BranchTable::offload(Branch& branch, std::vector<Piece> rows) {
  // Drafters keep what they know: it is of the same tokens when they are back.
  if (!rows.empty()) {
    cache_->seq_rm(branch.seq, rows.front().to);
    branch.n_cached = rows.front().to;
    branch.quantized_to = std::min(branch.quantized_to, branch.n_cached);
    branch.discarded_to = std::min(branch.discarded_to, branch.n_cached);
  }
  branch.aside.push_back(std::move(rows));
}

void BranchTable::reload(Branch& branch, SeqId held) {
  if (const std::vector<Piece>& rows = branch.aside.back(); !rows.empty()) {
    cache_->seq_map(held, branch.seq, rows);
    branch.n_cached = rows.back().to + rows.back().length;
  }
  branch.aside.pop_back();
}

void BranchTable::tell(Branch& branch) {
  if (branch.changed) return;
  changed_.push_back(branch.id);
  branch.changed = true;
}

LogChange BranchTable::change_of(const Branch& branch) {
  return {.branch = branch.id,
          .kept = branch.told,
          .appended = {branch.log.begin() + branch.told, branch.log.end()},
          .epoch = branch.lineage.at(branch.length()),
          .adapter = branch.adapters.last()};
}

std::vector<LogChange> BranchTable::take_changes() {
  std::vector<LogChange> changes = std::exchange(last_words_, {});
  for (const BranchId id : changed_) {
    Branch& branch = at(id);
    changes.push_back(change_of(branch));
    branch.told = branch.length();
    branch.changed = false;
  }
  changed_.clear();
  return changes;
}

void BranchTable::trim(Branch& branch) {
  if (cache_->seq_len(branch.seq) > branch.n_cached) cache_->seq_rm(branch.seq, branch.n_cached);
}

std::optional<SequenceLease> BranchTable::spare() {
  const std::size_t places = max_branches_ - branches_.size();
  return sequences_.free() > places ? sequences_.take() : std::nullopt;
}

std::optional<SequenceLease> BranchTable::borrow(const Branch& branch) {
  auto seq = sequences_.take();
  if (seq && branch.n_cached > 0) cache_->seq_cp(branch.seq, *seq, 0, branch.n_cached);
  return seq;
}

void BranchTable::check_owners(std::size_t others) const {
  cache_->check_owners();
  sequences_.check();
  owners_agree(sequences_.leased() == branches_.size() + others, sequences_.leased(), " sequences are taken, by ",
               branches_.size(), " branches and ", others, " others");
  for (const auto& [id, branch] : branches_) {
    owners_agree(branch->n_cached == cache_->seq_len(branch->seq) && cache_->frontier_size(branch->seq) == 0, "branch ",
                 id, " has ", branch->n_cached, " tokens in the cache, and its sequence ", SeqId{branch->seq},
                 " ends at ", cache_->seq_len(branch->seq), " with ", cache_->frontier_size(branch->seq),
                 " draft nodes");
  }
}

void BranchTable::share(const Branch& src, Branch& dst, Pos length) {
  if (length == 0) return;
  cache_->seq_cp(src.seq, dst.seq, 0, length);
  dst.n_cached = length;
  speculation_.shared(src.id, dst.id, length);
}

}  // namespace agentkv
