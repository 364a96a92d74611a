#include "engine/engine.h"

#include <algorithm>
#include <limits>

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {
namespace {

RunnerInfo checked_info(const ModelRunner* runner) {
  if (!runner) throw InvalidEngine("the engine needs a model runner");
  const RunnerInfo info = runner->info();
  if (info.vocab_size < 1 || info.max_tokens < 1 || info.max_logits < 1) {
    throw InvalidEngine(error_text("the model runner says vocab_size ", info.vocab_size, ", max_tokens ",
                                   info.max_tokens, ", max_logits ", info.max_logits, ", but each must be at least 1"));
  }
  return info;
}

EngineConfig checked_config(EngineConfig config) {
  if (config.max_positions < 0) {
    throw InvalidEngine(error_text("max_positions is ", config.max_positions, ", but must be at least 0"));
  }
  if (config.retain < 0) throw InvalidEngine(error_text("retain is ", config.retain, ", but must be at least 0"));
  if (config.max_batch_tokens < 1) {
    throw InvalidEngine(error_text("max_batch_tokens is ", config.max_batch_tokens, ", but must be at least 1"));
  }
  if (config.quantize_after < -1) {
    throw InvalidEngine(error_text("quantize_after is ", config.quantize_after, ", but must be at least -1"));
  }
  const Window& window = config.window;
  require<InvalidEngine>(window.length >= 0 && window.sinks >= 0 && window.reach >= 0, "a window of ", window.length,
                         " positions and ", window.sinks, " sinks that reaches ", window.reach,
                         " back, but none may be below 0");
  Pos shortest = 0;
  for (const Pos size : window.groups) {
    require<InvalidEngine>(size > shortest && window.length == 0 && window.groups.size() < kNoGroup,
                           "windows of some layers are above 0, in order, and none of all layers beside them");
    shortest = size;
  }
  return config;
}

// Beyond every branch where it is beyond all numbers of positions.
Pos position(std::int64_t value) {
  return static_cast<Pos>(std::clamp<std::int64_t>(value, -1, std::numeric_limits<Pos>::max()));
}

}  // namespace

Engine::Engine(std::shared_ptr<ModelRunner> runner, std::shared_ptr<TreeSeqCache> cache, Vocabulary vocabulary,
               EngineConfig config)
    : runner_(std::move(runner)),
      info_(checked_info(runner_.get())),
      vocabulary_(std::move(vocabulary)),
      config_(checked_config(config)),
      speculation_(stats_),
      constraints_(stats_, info_.vocab_size),
      branches_(std::move(cache), config.max_branches, info_.vocab_size, speculation_, config.window,
                config.quantize_after),
      pinned_(branches_),
      context_{.branches = branches_,
               .jobs = jobs_,
               .vocabulary = vocabulary_,
               .stats = stats_,
               .speculation = speculation_,
               .constraints = constraints_,
               .max_positions = config.max_positions},
      batch_(branches_, info_),
      forward_(*runner_, branches_.cache(), stats_) {
  branches_.cache().set_retention(config.retain);
}

Stats Engine::stats() {
  Stats stats = stats_;
  stats.branches = branches_.size();
  stats.cells_used = branches_.cache().used();
  stats.cells_shared = branches_.cache().shared();
  stats.cells_retained = branches_.cache().retained();
  stats.capacity = branches_.cache().capacity();
  stats.draft_bytes = speculation_.memory_bytes();
  return stats;
}

std::pair<BranchId, Pos> Engine::create(std::span<const Token> tokens, AdapterId adapter) {
  vocabulary_.check(tokens);
  check_adapter(adapter);
  branches_.check_room(1);
  return create_prompt(tokens, {}, 0, take_stream(), adapter);
}

std::pair<BranchId, Pos> Engine::create_prompt(std::span<const Token> tokens, std::optional<PinId> pin, Pos parts_at,
                                               std::uint64_t rng_stream, AdapterId adapter) {
  vocabulary_.check(tokens);
  check_adapter(adapter);
  require<InvalidRange>(!pin || adapter == kNoAdapter, "the rows of a pin are of no adapter, but ", adapter,
                        " was asked for");
  std::optional<SeqId> held;
  if (pin) held = pinned_.sequence(*pin);
  Branch& branch = branches_.create(rng_stream);
  branch.adapters.set(0, adapter);
  auto [reused, retained] = branches_.reuse_prefix(branch, tokens);
  branch.parts_at = std::max(branch.parts_at, parts_at);
  if (held) reused = branches_.take_pinned(branch, *held, tokens);
  stats_.reused += static_cast<std::uint64_t>(reused);
  stats_.recalled += static_cast<std::uint64_t>(retained);
  branches_.tell(branch);
  return {branch.id, reused};
}

Pos Engine::n_reusable(std::span<const Token> tokens, AdapterId adapter) {
  vocabulary_.check(tokens);
  check_adapter(adapter);
  return branches_.reusable(tokens, adapter);
}

void Engine::set_adapter(BranchId id, AdapterId adapter) {
  Branch& branch = branches_.jobless(id);
  check_adapter(adapter);
  branch.adapters.set(branch.length(), adapter);
  branch.made = {};
  branches_.tell(branch);
}

std::vector<BranchId> Engine::fork(BranchId id, std::size_t n) {
  std::vector<BranchId> children = branches_.fork(branches_.at(id), n);
  for (const BranchId child : children) branches_.tell(branches_.at(child));
  return children;
}

BranchId Engine::copy(BranchId id) {
  Branch& made = branches_.copy(branches_.still(id));
  branches_.tell(made);
  return made.id;
}

void Engine::rollback(BranchId id, std::int64_t length, std::optional<Epoch> epoch, bool keep_forgotten) {
  Branch& branch = branches_.jobless(id);
  branches_.rollback(branch, length, epoch, keep_forgotten);
  branches_.tell(branch);
}

void Engine::adopt(BranchId dst, BranchId src) {
  Branch& to = branches_.jobless(dst);
  branches_.adopt(to, branches_.idle(src));
  branches_.tell(to);
}

Cell Engine::forget(BranchId id, std::int64_t first, std::int64_t last, bool for_room) {
  Branch& branch = branches_.still(id);
  const Cell free = branches_.free_cells();
  branches_.forget(branch, position(first), position(last), for_room);
  branches_.tell(branch);
  return branches_.free_cells() - free;
}

Pos Engine::replaceable(BranchId id) {
  const Branch& branch = branches_.at(id);
  const Pos last = std::max(branch.length() - 1, 0);
  return branch.job && branch.job->is_constrained() ? std::min(branch.output.began, last) : last;
}

bool Engine::goes_on(BranchId id, const std::shared_ptr<Constraint>& constraint) const {
  const Branch& branch = branches_.at(id);
  return branch.output.goes_on(constraint, branch.length());
}

void Engine::replace(BranchId id, std::int64_t first, std::int64_t last, std::span<const Token> tokens) {
  Branch& branch = branches_.still(id);
  require<InvalidRange>(last <= replaceable(id), "replacing tokens [", first, ", ", last, ") of branch ", id,
                        ": the last token stays, and so does an output that is being generated");
  vocabulary_.check(tokens);
  const auto fewer = static_cast<std::size_t>(std::clamp<std::int64_t>(last - first, 0, branch.length()));
  check_positions(branch, tokens.size() > fewer ? tokens.size() - fewer : 0);
  const Pos length = branch.length();
  branches_.replace(branch, position(first), position(last), tokens);
  if (branch.job) branch.job->shifted(branch.length() - length);
  branches_.tell(branch);
}

void Engine::drop_cells_from(BranchId id, std::int64_t length) {
  Branch& branch = branches_.still(id);
  require<InvalidRange>(length >= 0, "uncaching branch ", id, " behind ", length, " tokens");
  branch.next_logits.reset();
  branches_.drop_cells(branch, std::min(position(length), branch.length()));
}

std::size_t Engine::n_to_refill(BranchId id) { return branches_.feedable(branches_.at(id)); }

Cell Engine::n_exclusive_cells(BranchId id, std::int64_t first) {
  require<InvalidRange>(first >= 0, "what branch ", id, " owns from position ", first, " on");
  return branches_.n_exclusive_cells(branches_.at(id), position(first));
}

std::vector<Forgotten> Engine::forgotten(BranchId id) { return branches_.at(id).forgotten; }

void Engine::resume(JobId id, bool made_room) {
  Job* job = find(id);
  if (!job) return;
  if (made_room && branches_.at(job->branch()).offloaded()) {
    context_.full.push_back(id);  // others took its cells meanwhile
  } else {
    job->resume(made_room);
  }
}

std::pair<Pos, Epoch> Engine::tip(BranchId id) {
  const Branch& branch = branches_.jobless(id);
  return {branch.length(), branch.lineage.at(branch.length())};
}

bool Engine::rests(BranchId id) {
  const Job* job = branches_.at(id).job;
  return !job || job->waits_for_room();
}

std::size_t Engine::n_running() const {
  return static_cast<std::size_t>(
      std::count_if(jobs_.begin(), jobs_.end(), [](const auto& job) { return !job->done() && !job->paused(); }));
}

void Engine::close(BranchId id) {
  if (!branches_.known(id)) return;
  Branch& branch = branches_.at(id);
  if (branch.job) cancel(branch.job->id());
  branches_.close(branch);
}

Cell Engine::compact(std::optional<Cell> retain) {
  TreeSeqCache& cache = branches_.cache();
  if (retain && *retain < config_.retain) {
    cache.set_retention(*retain);
    cache.set_retention(config_.retain);
  }
  cache.compact();
  return cache.read_window();
}

void Engine::attach(std::shared_ptr<Drafter> drafter) { speculation_.attach(std::move(drafter)); }

AcceptanceRates Engine::acceptance(const Drafter& drafter) const {
  const DraftSource* source = speculation_.find(drafter);
  if (!source) throw InvalidEngine("acceptance was asked of a drafter that is not attached");
  return source->policy.acceptance.rates();
}

template <class Kind, class... Args>
JobId Engine::start(Branch& branch, Args&&... args) {
  jobs_.push_back(std::make_unique<Kind>(next_job_, branch, context_, std::forward<Args>(args)...));
  return next_job_++;
}

void Engine::check_adapter(AdapterId adapter) const {
  const AdapterId known = std::min(runner_->adapters(), branches_.keys().most_adapters());
  require<InvalidRange>(kNoAdapter <= adapter && adapter <= known, "adapter ", adapter, " of ", known,
                        ": load it before it is used");
}

Branch& Engine::startable(BranchId id) {
  Branch& branch = branches_.idle(id);
  if (branch.log.empty()) throw EmptyBranch(error_text("branch ", id, " holds no token yet: extend it first"));
  return branch;
}

void Engine::check_positions(const Branch& branch, std::size_t more) const {
  const auto length = static_cast<std::size_t>(branch.length());
  const auto most = static_cast<std::size_t>(config_.max_positions);
  if (most == 0 || length + more <= most) return;
  throw PositionsExhausted(error_text("branch ", branch.id, " holds ", length, " tokens and would need ", length + more,
                                      " positions, but the model has ", most,
                                      ": roll the branch back, or begin another with less"));
}

JobId Engine::extend(BranchId id, std::span<const Token> tokens) {
  Branch& branch = branches_.idle(id);
  vocabulary_.check(tokens);
  const std::size_t pending = std::min(branch.pending().size(), branches_.feedable(branch));
  const std::size_t rows = tokens.empty() ? 0 : pending + tokens.size();
  auto job = std::make_unique<ExtendJob>(next_job_, branch, context_, tokens);
  const Cell needed = branches_.cells_for(branch, rows - std::min(rows, job->to_be_shared()));
  const Cell free = branches_.free_cells();
  if (needed > free) {
    throw ContextFull(error_text("extending branch ", id, " by ", tokens.size(), " tokens needs ", needed,
                                 " cells, but ", free, " of ", branches_.cache().capacity(),
                                 " are free: close or roll back branches, or open a larger cache"));
  }
  check_positions(branch, tokens.size());
  jobs_.push_back(std::move(job));
  branch.made = {};
  return next_job_++;
}

JobId Engine::generate(BranchId id, const GenerateOptions& options) {
  Branch& branch = startable(id);
  options.validate(vocabulary_.size(), branch.length());
  if (!options.waits_for_positions()) check_positions(branch, 1);
  if (options.drafter) attach(options.drafter);
  return start<GenerateJob>(branch, options);
}

JobId Engine::logits(BranchId id) { return start<LogitsJob>(startable(id)); }

JobId Engine::select(BranchId id, std::vector<std::vector<Token>> choices) {
  Branch& branch = startable(id);
  if (choices.empty()) throw InvalidChoices("select needs at least one choice");
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].empty()) throw InvalidChoices(error_text("choice ", i, " has no tokens, but needs at least one"));
    vocabulary_.check(choices[i]);
    check_positions(branch, choices[i].size() - 1);  // the last token of a choice is scored, never fed
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

bool Engine::undo(JobId id, Pos kept) {
  cancel(id);
  return branches_.undo(id, kept);
}

void Engine::ack(JobId id, std::int32_t tokens) {
  if (Job* job = find(id)) job->ack(tokens);
}

}  // namespace agentkv
