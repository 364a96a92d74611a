// One step of the engine: rows are offered, drafted for, run and delivered.
#include <algorithm>
#include <chrono>
#include <utility>

#include "core/errors.h"
#include "engine/engine.h"

namespace agentkv {
namespace {

using Clock = std::chrono::steady_clock;

// Prefill moves on even where decode rows alone fill a step.
constexpr std::size_t kLeastPrefill = 16;

Failure failure_of(const std::exception& error) {
  const auto* known = dynamic_cast<const OutOfMemory*>(&error);
  return {known ? known->kind : ErrorKind::StepFailed, error.what()};
}

Share share_of(const Segment& segment, std::size_t accepted) {
  const BatchEntry& entry = *segment.entry;
  const auto kind = entry.history ? Share::FedAgain : entry.decode ? Share::Decode : Share::Prefill;
  return {entry.job->branch(), kind, static_cast<std::int32_t>(segment.count),
          static_cast<std::int32_t>(entry.draft_rows()), static_cast<std::int32_t>(accepted)};
}

}  // namespace

StepReport Engine::step() {
  const auto start = Clock::now();
  const double forward_before = stats_.forward_seconds, draft_before = stats_.draft_seconds;
  StepReport report;
  report.finished.swap(settled_);

  batch_.clear();
  prepare_jobs();
  offer_rows();
  constraints_.begin_masks();
  run_forwards(report);
  constraints_.await_masks();
  for (const auto& job : jobs_) job->end_step();
  sweep(report.finished);
  report.emitted = std::exchange(context_.emitted, {});
  report.out_of_room = std::exchange(context_.full, {});

  report.idle = report.forwards == 0 && report.emitted.empty() && report.finished.empty() && report.out_of_room.empty();
  if (report.rows > 0) stats_.count_step(static_cast<std::size_t>(report.rows));
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  report.forward_seconds = stats_.forward_seconds - forward_before;
  report.draft_seconds = stats_.draft_seconds - draft_before;
  stats_.overhead_seconds += report.seconds - report.forward_seconds;
#ifdef AGENTKV_CHECK_OWNERS
  check_owners();
#endif
  return report;
}

StepReport Engine::settle() {
  StepReport report;
  report.finished.swap(settled_);
  prepare_jobs();
  sweep(report.finished);
  report.emitted = std::exchange(context_.emitted, {});
  report.idle = report.emitted.empty() && report.finished.empty();
  return report;
}

void Engine::prepare_jobs() {
  constraints_.clear_pending();
  for (const auto& job : jobs_) {
    if (!job->paused()) guarded(*job, [&] { job->prepare_once(); });
  }
  draw_known();
}

// Generations under a constraint whose row of logits is known draw from it without a forward.
void Engine::draw_known() {
  if (constraints_.pending().empty()) return;
  constraints_.take_turns(0);
  constraints_.begin_masks();
  constraints_.await_masks();
  for (const PendingTurn& pending : constraints_.pending()) {
    if (!pending.job->done()) guarded(*pending.job, [&] { pending.job->draw_known(); });
  }
}

// What a job cannot do fails that job alone.
template <class Action>
void Engine::guarded(Job& job, Action&& action) {
  try {
    action();
  } catch (const std::exception& error) {
    const Failure failure = failure_of(error);
    job.fail(failure.kind, failure.message);
  }
}

void Engine::offer_rows() {
  speculation_.clear_pending();
  constraints_.clear_pending();
  const auto runnable = [](const Job& job) { return !job.paused() && !job.done(); };
  for (const auto& job : jobs_) {
    if (runnable(*job) && job->rides()) guarded(*job, [&] { job->offer_rows(batch_); });
  }
  const auto bound = static_cast<std::size_t>(std::min(config_.max_batch_tokens, info_.max_tokens));
  const std::size_t rows = batch_.rows() + propose_drafts(bound);
  const std::size_t left = bound > rows ? bound - rows : 0;
  batch_.set_prefill_budget(std::max(left, std::min(bound, kLeastPrefill)));
  for (const auto& job : jobs_) {
    if (runnable(*job) && !job->rides()) guarded(*job, [&] { job->offer_rows(batch_); });
  }
  batch_.add_drafts();
}

// Drafts ride in the forward that the rows offered so far need anyway: what would need another one is not drafted.
std::size_t Engine::propose_drafts(std::size_t bound) {
  const std::size_t most = std::min({bound, static_cast<std::size_t>(info_.max_logits),
                                     batch_.rows() + static_cast<std::size_t>(std::max(batch_.free_cells(), Cell{0}))});
  const std::size_t room = most > batch_.rows() ? most - batch_.rows() : 0;
  const std::size_t forced = constraints_.take_turns(room);
  const std::size_t rows = batch_.rows() + forced, left = room - forced;
  speculation_.propose(rows, left);
  constraints_.grow_drafts(left);
  const std::size_t kept = speculation_.keep_what_pays(rows, left);
  constraints_.add_drafts();
  return forced + kept;
}

// Where the system has no more memory, what is retained leaves, and the others move into its place.
std::span<const float> Engine::run_forward(std::span<const Segment> segments) {
  try {
    return forward_.run(segments);
  } catch (const OutOfMemory&) {
    if (branches_.cache().retained() == 0) throw;
  }
  compact(0);
  return forward_.run(segments);
}

void Engine::run_forwards(StepReport& report) {
  report.branches = static_cast<std::int32_t>(batch_.jobs());
  while (batch_.next_forward(segments_)) {
    Failure failure;
    try {
      deliver(segments_, run_forward(segments_), report);
      continue;
    } catch (const std::exception& error) {
      failure = failure_of(error);
    }
    retry_alone(report, failure);
  }
}

// One job's rows may be what made a merged forward fail: those that fail alone end, the others go on.
void Engine::retry_alone(StepReport& report, const Failure& failure) {
  if (segments_.size() == 1) return segments_.front().entry->job->fail(failure.kind, failure.message);
  for (const Segment& segment : segments_) {
    Job& job = *segment.entry->job;
    if (job.done()) continue;
    ++stats_.retries;
    guarded(job, [&] { deliver({&segment, 1}, run_forward({&segment, 1}), report); });
  }
}

void Engine::deliver(std::span<const Segment> segments, std::span<const float> logits, StepReport& report) {
  const auto vocab = static_cast<std::size_t>(info_.vocab_size);
  const auto feature_dim = static_cast<std::size_t>(info_.feature_dim);
  std::span<const float> features = forward_.features();
  constraints_.await_masks();
  ++report.forwards;
  for (const Segment& segment : segments) {
    const BatchEntry& entry = *segment.entry;
    const auto rows = static_cast<std::int32_t>(segment.count);
    report.rows += rows;
    (entry.decode ? report.decode_rows : report.prefill_rows) += rows;
    stats_.tokens += segment.count;
    if (entry.history) {
      stats_.refed += segment.count;
    } else if (!entry.decode) {
      stats_.prefilled += segment.count;
    }
    const Pos first = entry.branch ? entry.branch->n_cached : 0;
    if (entry.branch) entry.branch->n_cached += static_cast<Pos>(segment.plain_rows());
    const auto own = logits.first(segment.logits_rows() * vocab);
    logits = logits.subspan(own.size());
    accepted_.clear();
    guarded(*entry.job, [&] { entry.job->take({segment, own, vocab, accepted_}); });
    if (entry.draft_rows() > 0) guarded(*entry.job, [&] { keep_accepted(entry); });
    report.shares.push_back(share_of(segment, accepted_.size()));
    if (entry.branch) {
      branches_.let_go(*entry.branch);
      branches_.quantize_old(*entry.branch);
      if (pinned_.empty()) branches_.discard_old(*entry.branch);
    }
    const auto own_features = features.first(features.empty() ? 0 : segment.count * feature_dim);
    features = features.subspan(own_features.size());
    if (entry.branch && !speculation_.empty()) tell_drafters(segment, first, own_features);
  }
  learn_cost(segments);
}

// The chain stays in the cache, the rest of the draft leaves it.
void Engine::keep_accepted(const BatchEntry& entry) {
  const auto accepted = static_cast<Pos>(accepted_.size());
  try {
    branches_.cache().commit(accepted_, accepted, entry.seq);
  } catch (...) {
    accepted_.clear();  // the frontier is gone: these tokens are fed anew
    throw;
  }
  entry.branch->n_cached += accepted;
}

// What stays of the segment's rows, the accepted nodes included, is in the branch's log by now.
void Engine::tell_drafters(const Segment& segment, Pos first, std::span<const float> features) {
  const Branch& branch = *segment.entry->branch;
  const std::size_t plain = segment.plain_rows();
  const std::size_t kept = plain + accepted_.size();
  if (branch.n_cached < first + static_cast<Pos>(kept)) return;  // its job failed, and took it back
  const auto tokens = std::span(branch.log).subspan(static_cast<std::size_t>(first), kept);
  if (features.empty()) return speculation_.observe(branch.id, first, tokens, {});
  const std::size_t dim = features.size() / segment.count;
  fed_features_.assign(features.begin(), features.begin() + static_cast<std::ptrdiff_t>(plain * dim));
  for (const std::int32_t node : accepted_) {
    const auto row = features.subspan((plain + static_cast<std::size_t>(node)) * dim, dim);
    fed_features_.insert(fed_features_.end(), row.begin(), row.end());
  }
  speculation_.observe(branch.id, first, tokens, fed_features_);
}

// Only forwards that decode: rows of a prefill want no logits and cost less.
void Engine::learn_cost(std::span<const Segment> segments) {
  std::size_t rows = 0;
  for (const Segment& segment : segments) {
    if (!segment.entry->decode) return;
    rows += segment.count;
  }
  speculation_.learn_cost(rows, forward_.seconds());
}

void Engine::sweep(std::vector<Finished>& finished) {
  for (const auto& job : jobs_) {
    if (job->done()) finished.push_back(job->take_outcome());
  }
  std::erase_if(jobs_, [](const auto& job) { return job->done(); });
}

}  // namespace agentkv
