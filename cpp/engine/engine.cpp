#include "engine/engine.h"

#include <algorithm>
#include <chrono>

#include "core/message.h"
#include "engine/errors.h"

namespace agentkv {
namespace {

using Clock = std::chrono::steady_clock;

// Prefill moves on even where decode rows alone fill a step.
constexpr std::size_t kLeastPrefill = 16;

ProgramInfo checked_info(const Program* program) {
  if (!program) throw InvalidEngine("the engine needs a program");
  const ProgramInfo info = program->info();
  if (info.vocab_size < 1 || info.max_tokens < 1 || info.max_logits < 1) {
    throw InvalidEngine(error_text("the program says vocab_size ", info.vocab_size, ", max_tokens ", info.max_tokens,
                                   ", max_logits ", info.max_logits, ", but each must be at least 1"));
  }
  return info;
}

EngineConfig checked_config(EngineConfig config) {
  if (config.max_batch_tokens < 1) {
    throw InvalidEngine(error_text("max_batch_tokens is ", config.max_batch_tokens, ", but must be at least 1"));
  }
  return config;
}

}  // namespace

Engine::Engine(std::shared_ptr<Program> program, std::shared_ptr<SeqCache> cache, Vocabulary vocabulary,
               EngineConfig config)
    : program_(std::move(program)),
      info_(checked_info(program_.get())),
      vocabulary_(std::move(vocabulary)),
      config_(checked_config(config)),
      branches_(std::move(cache), config.max_branches),
      context_{.branches = branches_, .vocabulary = vocabulary_, .stats = stats_},
      batch_(branches_, info_),
      forward_(*program_, branches_.cache(), stats_) {}

std::pair<BranchId, Pos> Engine::create(std::span<const Token> tokens) {
  vocabulary_.check(tokens);
  Branch& branch = branches_.create();
  const Pos reused = branches_.reuse_prefix(branch, tokens);
  stats_.tokens_reused += static_cast<std::uint64_t>(reused);
  return {branch.id, reused};
}

BranchId Engine::fork(BranchId id) { return branches_.fork(branches_.at(id)).id; }

void Engine::rollback(BranchId id, std::int64_t length) { branches_.rollback(branches_.idle(id), length); }

void Engine::adopt(BranchId dst, BranchId src) {
  Branch& to = branches_.idle(dst);
  branches_.adopt(to, branches_.idle(src));
}

void Engine::close(BranchId id) {
  if (!branches_.known(id)) return;
  Branch& branch = branches_.at(id);
  if (branch.job) cancel(branch.job->id());
  branches_.close(branch);
}

template <class Kind, class... Args>
JobId Engine::start(Branch& branch, Args&&... args) {
  jobs_.push_back(std::make_unique<Kind>(next_job_, branch, context_, std::forward<Args>(args)...));
  return next_job_++;
}

Branch& Engine::startable(BranchId id) {
  Branch& branch = branches_.idle(id);
  if (branch.log.empty()) throw EmptyBranch(error_text("branch ", id, " holds no token yet: extend it first"));
  return branch;
}

JobId Engine::extend(BranchId id, std::span<const Token> tokens) {
  Branch& branch = branches_.idle(id);
  vocabulary_.check(tokens);
  const std::size_t needed = tokens.empty() ? 0 : branch.pending().size() + tokens.size();
  const auto free = static_cast<std::size_t>(branches_.free_cells());
  if (needed > free) {
    throw ContextFull(error_text("extending branch ", id, " by ", tokens.size(), " tokens needs ", needed,
                                 " cells, but ", free, " of ", capacity(),
                                 " are free: close or roll back branches, or open a larger cache"));
  }
  return start<ExtendJob>(branch, tokens);
}

JobId Engine::generate(BranchId id, const GenerateOptions& options) {
  Branch& branch = startable(id);
  options.validate();
  return start<GenerateJob>(branch, options);
}

JobId Engine::logits(BranchId id) { return start<LogitsJob>(startable(id)); }

JobId Engine::select(BranchId id, std::vector<std::vector<Token>> choices) {
  Branch& branch = startable(id);
  if (choices.empty()) throw InvalidChoices("select needs at least one choice");
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].empty()) throw InvalidChoices(error_text("choice ", i, " has no tokens, but needs at least one"));
    vocabulary_.check(choices[i]);
  }
  return start<SelectJob>(branch, std::move(choices));
}

Job* Engine::find(JobId id) {
  const auto found = std::find_if(jobs_.begin(), jobs_.end(), [&](const auto& job) { return job->id() == id; });
  return found == jobs_.end() ? nullptr : found->get();
}

void Engine::cancel(JobId id) {
  Job* job = find(id);
  if (!job) return;
  job->cancel();
  sweep(settled_);
}

void Engine::pause(JobId id, bool paused) {
  if (Job* job = find(id)) job->paused = paused;
}

StepReport Engine::step() {
  const auto start = Clock::now();
  const double forward_before = stats_.forward_seconds;
  StepReport report;
  report.finished.swap(settled_);

  batch_.clear();
  prepare_jobs();
  offer_rows();
  run_forwards(report);
  for (const auto& job : jobs_) job->end_step();
  sweep(report.finished);
  report.emitted = std::exchange(context_.emitted, {});

  report.idle = report.forwards == 0 && report.emitted.empty() && report.finished.empty();
  if (!report.idle) stats_.count_step(static_cast<std::size_t>(report.rows));
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  stats_.overhead_seconds += seconds - (stats_.forward_seconds - forward_before);
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
  for (const auto& job : jobs_) {
    if (!job->paused) guarded(*job, [&] { job->prepare(); });
  }
}

// What a job cannot do fails that job alone.
template <class Action>
void Engine::guarded(Job& job, Action&& action) {
  try {
    action();
  } catch (const std::exception& error) {
    job.fail("StepFailed", error.what());
  }
}

void Engine::offer_rows() {
  const auto runnable = [](const Job& job) { return !job.paused && !job.done(); };
  for (const auto& job : jobs_) {
    if (runnable(*job) && job->always_rides()) guarded(*job, [&] { job->offer(batch_); });
  }
  const auto bound = static_cast<std::size_t>(std::min(config_.max_batch_tokens, info_.max_tokens));
  const std::size_t left = bound > batch_.rows() ? bound - batch_.rows() : 0;
  batch_.set_prefill_budget(std::max(left, std::min(bound, kLeastPrefill)));
  for (const auto& job : jobs_) {
    if (runnable(*job) && !job->always_rides()) guarded(*job, [&] { job->offer(batch_); });
  }
}

void Engine::run_forwards(StepReport& report) {
  report.branches = static_cast<std::int32_t>(batch_.jobs());
  while (batch_.next_forward(segments_)) {
    std::string reason;
    try {
      deliver(segments_, forward_.run(segments_), report);
      continue;
    } catch (const std::exception& error) {
      reason = error.what();
    }
    retry_alone(report, reason);
  }
}

// One job's rows may be what made a merged forward fail: those that fail alone end, the others go on.
void Engine::retry_alone(StepReport& report, const std::string& reason) {
  if (segments_.size() == 1) return segments_.front().feed->job->fail("StepFailed", reason);
  for (const Segment& segment : segments_) {
    Job& job = *segment.feed->job;
    if (job.done()) continue;
    ++stats_.retries;
    guarded(job, [&] { deliver({&segment, 1}, forward_.run({&segment, 1}), report); });
  }
}

void Engine::deliver(std::span<const Segment> segments, std::span<const float> logits, StepReport& report) {
  const auto vocab = static_cast<std::size_t>(info_.vocab_size);
  ++report.forwards;
  for (const Segment& segment : segments) {
    const Feed& feed = *segment.feed;
    const auto rows = static_cast<std::int32_t>(segment.count);
    report.rows += rows;
    (feed.decode ? report.decode_rows : report.prefill_rows) += rows;
    stats_.rows += segment.count;
    (feed.decode ? stats_.decode_rows : stats_.prefill_rows) += segment.count;
    if (feed.branch) feed.branch->n_cached += rows;
    const auto own = logits.first(segment.logits_rows() * vocab);
    logits = logits.subspan(own.size());
    guarded(*feed.job, [&] { feed.job->absorb({segment, own, vocab}); });
  }
}

void Engine::sweep(std::vector<Finished>& finished) {
  for (const auto& job : jobs_) {
    if (job->done()) finished.push_back(job->take_outcome());
  }
  std::erase_if(jobs_, [](const auto& job) { return job->done(); });
}

}  // namespace agentkv
