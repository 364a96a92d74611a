#include "engine/branch_table.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "core/message.h"
#include "engine/job.h"

namespace agentkv {
namespace {

// Cells that a window leaves behind are given back so many at a time; and where some are fed again, a branch may be
// rolled back so far once more.
constexpr Pos kLetGo = 64;

}  // namespace

BranchTable::BranchTable(std::shared_ptr<TreeSeqCache> cache, std::int32_t max_branches, Speculation& speculation,
                         Window window)
    : cache_(std::move(cache)), speculation_(speculation), window_(window) {
  if (!cache_) throw InvalidEngine("the engine needs a cache");
  if (max_branches < 1 || max_branches > cache_->max_sequences()) {
    throw InvalidEngine(error_text("max_branches is ", max_branches, ", but must be from 1 to the ",
                                   cache_->max_sequences(), " sequences of the cache"));
  }
  max_branches_ = static_cast<std::size_t>(max_branches);
  for (SeqId seq = cache_->max_sequences(); seq-- > 0;) free_.push_back(seq);
}

Branch& BranchTable::at(BranchId id) {
  const auto found = branches_.find(id);
  if (found == branches_.end()) throw BranchClosed(error_text("branch ", id, " is closed or never existed"));
  return *found->second;
}

Branch& BranchTable::idle(BranchId id) {
  Branch& branch = at(id);
  if (branch.job) {
    throw BranchBusy(
        error_text("branch ", id, " has a job that still runs: wait for it, cancel it, or fork the branch"));
  }
  check_here(branch);
  return branch;
}

Branch& BranchTable::still(BranchId id) {
  Branch& branch = at(id);
  return branch.job && branch.job->waits_for_room() ? branch : idle(id);
}

void BranchTable::check_here(const Branch& branch) {
  if (branch.aside) throw BranchBusy(error_text("branch ", branch.id, " is set aside: bring it back first"));
}

void BranchTable::check_room(std::size_t n) const {
  if (n <= max_branches_ - branches_.size()) return;
  throw TooManyBranches(error_text(n, n == 1 ? " more branch was" : " more branches were", " asked for, but ",
                                   branches_.size(), " of at most ", max_branches_, " are live: close some first"));
}

Branch& BranchTable::add(BranchState state) {
  check_room(1);
  auto branch = std::make_unique<Branch>(Branch{std::move(state)});
  branch->id = next_id_;
  branch->seq = free_.back();
  branch->lineage.cut(branch->length(), ++epochs_);  // another branch may go on with the last one
  Branch& added = *branches_.emplace(next_id_, std::move(branch)).first->second;
  free_.pop_back();
  ++next_id_;
  return added;
}

Branch& BranchTable::create() {
  Branch& branch = add({.rng_stream = roots_});
  ++roots_;
  return branch;
}

std::vector<BranchId> BranchTable::fork(Branch& parent, std::size_t n) {
  check_here(parent);
  check_room(n);
  std::vector<BranchId> children;
  children.reserve(n);
  try {
    while (children.size() < n) children.push_back(fork(parent).id);
  } catch (...) {
    for (const BranchId child : children) close(at(child));
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

void BranchTable::rollback(Branch& branch, std::int64_t length, std::optional<Epoch> epoch) {
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
  drop_cells(branch, static_cast<Pos>(length), static_cast<Pos>(length));
  branch.roll_back(static_cast<Pos>(length));
  branch.lineage.cut(static_cast<Pos>(length), ++epochs_);
  branch.told = std::min(branch.told, static_cast<Pos>(length));
  branch.made = {};
}

bool BranchTable::take_back(JobId job, Pos kept) {
  const auto by_job = [job](const auto& entry) { return entry.second->made.by == job && !entry.second->job; };
  const auto found = std::find_if(branches_.begin(), branches_.end(), by_job);
  if (found == branches_.end()) return false;
  Branch& branch = *found->second;
  const Made made = std::exchange(branch.made, {});
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
  drop_cells(dst, 0, 0);
  dst.roll_back(0);
  share(src, dst, src.n_cached);
  static_cast<BranchState&>(dst) = std::move(state);
}

void BranchTable::close(Branch& branch) noexcept {
  // Whoever was told of the branch before is told its last words, too.
  if (branch.changed && branch.told > 0) last_words_.push_back(change_of(branch));
  retain(branch);
  speculation_.closed(branch.id);
  if (cache_->seq_len(branch.seq) > 0) cache_->seq_rm(branch.seq);
  free_.push_back(branch.seq);  // has room: the constructor filled it with every sequence
  if (branch.changed) std::erase(changed_, branch.id);
  branches_.erase(branch.id);
}

Branch& BranchTable::restore(const StoredBranch& stored, SeqId held, LogitsRow next_logits) {
  const auto length = static_cast<Pos>(stored.log.size());
  std::int64_t cached = 0;
  for (const Piece& piece : stored.rows) {
    require<InvalidRange>(piece.to >= cached && piece.length >= 1, "rows for positions from ", piece.to, " on, after ",
                          cached, " positions");
    cached = std::int64_t{piece.to} + piece.length;
  }
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
                        .lends = false,  // whoever stored it may have stored anything
                        .forgotten = stored.forgotten,
                        .exact_from = stored.exact_from});
  try {
    if (cached > 0) cache_->seq_map(held, branch.seq, stored.rows);
    branch.n_cached = static_cast<Pos>(cached);
    require<InvalidRange>(covered(branch) == branch.n_cached, "no row for position ", covered(branch), " of ", cached);
  } catch (...) {
    close(branch);
    throw;
  }
  return branch;
}

void BranchTable::set_aside(Branch& branch, std::vector<Piece> rows) {
  // Drafters keep what they know: it is of the same tokens when they are back.
  if (!rows.empty()) {
    cache_->seq_rm(branch.seq, rows.front().to);
    branch.n_cached = rows.front().to;
  }
  branch.made = {};
  branch.aside = std::move(rows);
}

void BranchTable::bring_back(Branch& branch, SeqId held) {
  if (const std::vector<Piece>& rows = *branch.aside; !rows.empty()) {
    cache_->seq_map(held, branch.seq, rows);
    branch.n_cached = rows.back().to + rows.back().length;
  }
  branch.aside.reset();
}

void BranchTable::tell(Branch& branch) {
  if (branch.changed) return;
  changed_.push_back(branch.id);
  branch.changed = true;
}

LogChange BranchTable::change_of(const Branch& branch) {
  return {
      branch.id, branch.told, {branch.log.begin() + branch.told, branch.log.end()}, branch.lineage.at(branch.length())};
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

// What is gone is computed anew, so retention does without what it cannot take.
void BranchTable::retain(const Branch& branch) noexcept {
  if (branch.n_cached == 0 || !branch.lends) return;
  try {
    const Pos held = std::min(unbroken(branch), branch.length());  // a job may fail before its tokens are in the log
    cache_->seq_retain(branch.seq, std::span(branch.log).first(static_cast<std::size_t>(held)));
  } catch (const std::exception&) {
  }
}

BranchTable::Reused BranchTable::reuse_prefix(Branch& branch, std::span<const Token> tokens) {
  if (tokens.empty()) return {};
  const auto wanted = tokens.first(tokens.size() - 1);
  const Branch* best = nullptr;
  std::size_t longest = 0;
  for (const auto& [id, other] : branches_) {
    if (!other->lends) continue;
    const std::size_t limit = std::min(static_cast<std::size_t>(other->n_cached), wanted.size());
    if (limit <= longest) continue;
    const auto end = tokens.begin() + static_cast<std::ptrdiff_t>(limit);
    const auto alike = std::mismatch(tokens.begin(), end, other->log.begin()).first - tokens.begin();
    const auto same = static_cast<std::size_t>(lendable(*other, static_cast<Pos>(alike)));
    if (same > longest) {
      longest = same;
      best = other.get();
    }
  }
  // Cells that are live are shared, and only what lies behind them is recalled: together they take the fewest cells.
  const auto live = static_cast<Pos>(longest);
  const Pos all = std::max(live, cache_->find_retained(wanted));
  branch.log.assign(wanted.begin(), wanted.begin() + all);
  if (best) share(*best, branch, live);
  if (best) branch.exact_from = best->exact_from;
  if (all > live) branch.n_cached = cache_->seq_recall(branch.seq, wanted);
  return {all, all - live};
}

Pos BranchTable::take_more(Branch& branch, const Branch* src, Pos length, std::span<const Token> tokens) {
  if (src) {
    cache_->seq_cp(src->seq, branch.seq, branch.n_cached, length);
    branch.n_cached = length;
    speculation_.shared(src->id, branch.id, length);
  }
  if (cache_->find_retained(tokens) > branch.n_cached) branch.n_cached = cache_->seq_recall(branch.seq, tokens);
  return branch.n_cached;
}

std::span<const Token> BranchTable::refeed(Branch& branch) {
  if (branch.n_cached == branch.length()) drop_cells(branch, branch.length() - 1);
  return branch.pending();
}

// K and V of a row are a function of what lies `reach` before it. So where a window let cells go that are needed again,
// feeding begins that far back: its first rows lack what they look at, and none of those that count look at them.
void BranchTable::drop_cells(Branch& branch, Pos length, Pos log) {
  const bool recalls = std::any_of(branch.forgotten.begin(), branch.forgotten.end(),
                                   [log](const Forgotten& gone) { return gone.at > log; });
  if (branch.n_cached <= length && !recalls) return;
  length = std::min(length, branch.n_cached);
  const Coverage held = coverage(branch, log);
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
  branch.exact_from = exact_from;
  speculation_.truncated(branch.id, kept);
}

Pos BranchTable::covered(const Branch& branch) const {
  return coverage(branch, branch.length()).covered(branch.n_cached);
}

Coverage BranchTable::coverage(const Branch& branch, Pos log) const {
  return {branch, log, cache_->seq_runs(branch.seq), window_};
}

Pos BranchTable::lendable(const Branch& branch, Pos length) const {
  for (const Forgotten& gone : branch.forgotten) length = std::min(length, gone.first);
  return coverage(branch, branch.length()).covered(length);
}

Pos BranchTable::unbroken(const Branch& branch) const {
  Pos end = 0;
  for (const Run& run : cache_->seq_runs(branch.seq)) {
    if (run.position != end) break;
    end = end_position(run);
  }
  return std::min(end, branch.n_cached);
}

void BranchTable::forget(Branch& branch, Pos first, Pos last) {
  require<InvalidRange>(0 <= first && first <= last && last < branch.length(), "forgetting positions [", first, ", ",
                        last, ") of branch ", branch.id, ", which has ", branch.length(),
                        " tokens; all but the last can be forgotten");
  if (first == last) return;
  branch.forgotten.push_back({first, last, branch.length()});
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
  const Output& output = branch.output;
  require<InvalidRange>(!output.constraint || output.end <= first || last <= output.began, "replacing tokens [", first,
                        ", ", last, ") of branch ", branch.id, ", which has an output in [", output.began, ", ",
                        output.end, ")");
  const Pos shift = static_cast<Pos>(tokens.size()) - (last - first);
  std::vector<Token> log(branch.log.begin(), branch.log.begin() + first);
  log.insert(log.end(), tokens.begin(), tokens.end());
  log.insert(log.end(), branch.log.begin() + last, branch.log.end());
  std::vector<Forgotten> forgotten;
  for (const Forgotten& gone : branch.forgotten) {
    if (gone.first < first) forgotten.push_back({gone.first, std::min(gone.last, first), std::min(gone.at, first + 1)});
  }
  branch.forgotten.swap(forgotten);
  try {
    drop_cells(branch, first, static_cast<Pos>(log.size()));
  } catch (...) {
    branch.forgotten.swap(forgotten);
    throw;
  }
  branch.log.swap(log);
  branch.lineage.cut(first, ++epochs_);
  branch.told = std::min(branch.told, first);
  branch.next_logits.reset();
  branch.made = {};
  if (output.constraint && output.began >= last) {
    branch.output.began += shift;
    branch.output.end += shift;
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

Cell BranchTable::cells_for(std::size_t tokens, std::size_t chunk) const {
  const auto all = static_cast<std::int64_t>(tokens);
  if (window_.length == 0) return static_cast<Cell>(all);
  const std::int64_t most = std::int64_t{window_.sinks} + window_.length + kLetGo + static_cast<std::int64_t>(chunk);
  return static_cast<Cell>(std::min(all, most));
}

void BranchTable::trim(Branch& branch) {
  if (cache_->seq_len(branch.seq) > branch.n_cached) cache_->seq_rm(branch.seq, branch.n_cached);
}

std::optional<SeqId> BranchTable::borrow() {
  if (free_.empty()) return std::nullopt;
  const SeqId seq = free_.back();
  free_.pop_back();
  return seq;
}

std::optional<SeqId> BranchTable::borrow(const Branch& branch) {
  if (free_.empty()) return std::nullopt;
  if (branch.n_cached > 0) cache_->seq_cp(branch.seq, free_.back(), 0, branch.n_cached);
  return borrow();
}

void BranchTable::give_back(SeqId seq) {
  if (cache_->seq_len(seq) > 0) cache_->seq_rm(seq);
  free_.push_back(seq);
}

void BranchTable::share(const Branch& src, Branch& dst, Pos length) {
  if (length == 0) return;
  cache_->seq_cp(src.seq, dst.seq, 0, length);
  dst.n_cached = length;
  speculation_.shared(src.id, dst.id, length);
}

}  // namespace agentkv
