#include <algorithm>

#include "engine/jobs.h"

namespace agentkv {
namespace {

// So few rows ride with the decode rows: loops that extend token by token must not queue behind a long prefill.
constexpr std::size_t kShort = 4;

// Rows that are worth waiting for: fewer cost less than the steps that pass.
constexpr Pos kWorthWaiting = 16;

}  // namespace

ExtendJob::ExtendJob(JobId id, Branch& branch, JobContext& context, std::span<const Token> tokens)
    : Job(id, branch, context),
      n_pending_(branch.pending().empty() ? 0 : 1),
      base_length_(branch.length()),
      base_row_(branch.next_logits) {
  if (tokens.empty()) return;
  const auto pending = branch.pending().last(n_pending_);
  tokens_.reserve(pending.size() + tokens.size());
  tokens_.assign(pending.begin(), pending.end());
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  ahead_ = find_ahead();
}

std::size_t ExtendJob::to_be_shared() const {
  return ahead_ ? static_cast<std::size_t>(ahead_->length - branch_.n_cached) : 0;
}

// Of the branch as it will be; those that were fed are in its log and in tokens_.
Token ExtendJob::key_at(Pos position) const {
  const Pos cached = base_length_ - static_cast<Pos>(n_pending_);
  const Token token = position < cached ? branch_.log[static_cast<std::size_t>(position)]
                                        : tokens_[static_cast<std::size_t>(position - cached)];
  return context_.branches.keys().of(token, branch_.adapters.at(position));
}

// How many tokens both begin with, the last of this one left out: it is fed for its logits. 0 where that is no more
// than the branch has already, or differs there.
Pos ExtendJob::common_with(const ExtendJob& other) const {
  const Pos most = std::min(total() - 1, other.total());
  Pos common = branch_.n_cached;
  while (common < most && key_at(common) == other.key_at(common)) ++common;
  if (common < branch_.n_cached + kWorthWaiting) return 0;
  for (Pos i = branch_.n_cached; i-- > 0;) {  // histories that differ mostly differ at their ends
    if (key_at(i) != other.key_at(i)) return 0;
  }
  return common;
}

// Prompts that were opened together are computed once as far as they are alike: by the one that came first.
std::optional<SharedPrefill> ExtendJob::find_ahead() const {
  std::optional<SharedPrefill> most;
  if (behind() || !branch_.lends || !context_.branches.keeps_all(branch_) ||
      total() < branch_.n_cached + kWorthWaiting) {
    return most;
  }
  for (const auto& job : context_.jobs) {
    if (job->id() >= id()) break;
    const auto* other = dynamic_cast<const ExtendJob*>(job.get());
    if (!other || other->done() || !other->branch_.lends) continue;
    const Pos common = common_with(*other);
    if (common > (most ? most->length : 0)) most = SharedPrefill{other->id(), other->branch_.id, common};
  }
  return most;
}

// Is what another job computes now to be shared later? Where that one ended early, its like is looked for.
bool ExtendJob::waits(const Batch& batch) {
  while (ahead_) {
    const Branch* other = context_.branches.known(ahead_->branch) ? &context_.branches.at(ahead_->branch) : nullptr;
    const bool running = other && other->job && other->job->id() == ahead_->job && !other->job->done();
    if (running && other->n_cached < ahead_->length) return true;
    const JobId last = ahead_->job;
    const bool took = take_what_is_there(other, ahead_->length, batch);
    ahead_ = find_ahead();
    if (!took && ahead_ && ahead_->job == last) ahead_.reset();  // of what it has, nothing is a basis to go on from
  }
  return false;
}

// Was there something?
bool ExtendJob::take_what_is_there(const Branch* other, Pos length, const Batch& batch) {
  std::vector<Token> whole;
  for (Pos i = 0; i < total() - 1; ++i) whole.push_back(key_at(i));
  length = other ? std::min(other->n_cached, length) : 0;
  const auto shared = std::span(whole).first(static_cast<std::size_t>(length));
  std::vector<Token> room;
  const bool live = length > branch_.n_cached && other->lends && context_.branches.keeps_all(*other) &&
                    std::ranges::equal(shared, context_.branches.keys().of(std::span(other->log).first(shared.size()),
                                                                           other->adapters, room));
  const Pos before = branch_.n_cached;
  const auto promised = static_cast<Cell>(batch.rows());
  const Pos all = context_.branches.take_more(branch_, live ? other : nullptr, length, whole, promised);
  if (all == before) return false;
  advance(static_cast<std::size_t>(all - before));
  context_.stats.reused += static_cast<std::uint64_t>(all - before);
  return true;
}

void ExtendJob::advance(std::size_t count) {
  const std::size_t end = fed_ + count;
  const std::size_t fresh = std::max(fed_, n_pending_);  // the pending token is in the log already
  branch_.next_logits.reset();
  branch_.log.insert(branch_.log.end(), tokens_.begin() + static_cast<std::ptrdiff_t>(fresh),
                     tokens_.begin() + static_cast<std::ptrdiff_t>(end));
  fed_ = end;
}

bool ExtendJob::rides_with_decode() const { return tokens_.size() - fed_ <= kShort; }

void ExtendJob::prepare() {
  if (tokens_.empty()) finish();
}

void ExtendJob::offer(Batch& batch) {
  if (waits(batch)) return;
  const std::size_t left = tokens_.size() - fed_;
  // Looked at as a whole, so that a prompt which cannot fit does not eat the cells of those that can.
  const Cell needed = context_.branches.cells_for(branch_, left);
  if (needed > batch.free_cells() + batch.returning_cells()) return no_room(needed, batch.free_cells());
  if (needed > batch.free_cells()) return;
  const auto free = static_cast<std::size_t>(batch.free_cells());
  const std::size_t count = std::min({left, rides_with_decode() ? left : batch.prefill_budget(), free});
  if (count == 0) return;
  batch.add({.job = this,
             .seq = branch_.seq,
             .branch = &branch_,
             .tokens = std::span(tokens_).subspan(fed_, count),
             .first_logits = count == left ? count - 1 : count});
}

void ExtendJob::absorb(const RowResults& rows) {
  advance(rows.segment.count);
  if (fed_ < tokens_.size()) return;
  branch_.next_logits = context_.rows.copy(checked_row(rows.row(rows.segment.begin + rows.segment.count - 1)));
  finish();
  branch_.made = {id(), base_length_, base_row_};
}

void ExtendJob::restore() {
  context_.branches.retain(branch_);
  context_.branches.rollback(branch_, base_length_);
  if (base_row_) branch_.next_logits = base_row_;
}

}  // namespace agentkv
