#include "engine/speculation.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/errors.h"
#include "core/message.h"
#include "engine/job.h"

namespace agentkv {
namespace {

constexpr std::int32_t kMaxNodes = 64;  // of one draft
constexpr double kLikely = 0.5;         // more likely accepted than not

using Clock = std::chrono::steady_clock;

// Keeps the marked nodes, with which come all their ancestors, under new indices.
void keep_nodes(Draft& draft, const std::vector<bool>& kept, std::vector<std::int32_t>& index) {
  index.resize(draft.size());
  std::size_t n = 0;
  for (std::size_t node = 0; node < draft.size(); ++node) {
    if (!kept[node]) continue;
    const std::int32_t parent = draft.parents[node];
    index[node] = static_cast<std::int32_t>(n);
    draft.tokens[n] = draft.tokens[node];
    draft.parents[n] = parent < 0 ? -1 : index[static_cast<std::size_t>(parent)];
    if (!draft.confidence.empty()) draft.confidence[n] = draft.confidence[node];
    ++n;
  }
  draft.cut(n);
}

}  // namespace

Guess* Speculator::guess_of(const DraftSource& source) {
  const auto guess = std::find_if(guesses.begin(), guesses.end(), [&](const Guess& g) { return g.source == &source; });
  return guess == guesses.end() ? nullptr : &*guess;
}

bool Speculator::adaptive() const {
  return std::all_of(guesses.begin(), guesses.end(),
                     [](const Guess& guess) { return guess.source->drafter->adaptive; });
}

std::vector<DraftSource*> Speculation::attach(const std::shared_ptr<Drafter>& drafter) {
  if (!drafter) throw InvalidEngine("there is no drafter to attach");
  std::vector<DraftSource*> sources;
  for (const auto& part : drafter->parts()) sources.push_back(&attach_one(part));
  if (sources.empty()) sources.push_back(&attach_one(drafter));
  return sources;
}

DraftSource& Speculation::attach_one(const std::shared_ptr<Drafter>& drafter) {
  for (const auto& source : sources_) {
    if (source->drafter == drafter) return *source;
  }
  sources_.push_back(std::make_unique<DraftSource>(drafter, DraftPolicy(options, cost_, drafter->prior)));
  return *sources_.back();
}

Speculator Speculation::begin(const std::shared_ptr<Drafter>& drafter) {
  Speculator speculator;
  for (DraftSource* source : attach(drafter)) speculator.guesses.push_back({source});
  return speculator;
}

const DraftSource* Speculation::find(const Drafter& drafter) const {
  for (const auto& source : sources_) {
    if (source->drafter.get() == &drafter) return source.get();
  }
  return nullptr;
}

std::size_t Speculation::memory_bytes() const {
  std::size_t bytes = 0;
  for (const auto& source : sources_) bytes += source->drafter->memory_bytes();
  return bytes;
}

// Drafters that cost next to nothing come first: the others are asked for what these leave to be gained.
void Speculation::propose(std::size_t rows, std::size_t room) {
  std::erase_if(pending_, [](const PendingDraft& pending) { return pending.job->done(); });
  if (pending_.empty()) return;
  for (const PendingDraft& pending : pending_) {
    for (Guess& guess : pending.speculator->guesses) guess = {guess.source};
  }
  for (const auto& source : sources_) source->policy.begin_round(rows, pending_.size());
  for (const bool free : {true, false}) {
    for (const auto& source : sources_) {
      if (source->policy.costs_nothing() == free) ask(*source, room);
    }
    for (const PendingDraft& pending : pending_) merge(*pending.speculator);
  }
}

void Speculation::ask(DraftSource& source, std::size_t room) {
  requests_.clear();
  asked_.clear();
  for (const PendingDraft& pending : pending_) {
    Speculator& speculator = *pending.speculator;
    Guess* guess = speculator.guess_of(source);
    if (!guess || room == 0) continue;
    plan(*guess, pending);
    if (guess->plan.depth == 0) continue;
    // Nodes for what is forced anyway.
    const auto before = source.drafter->sees_forced ? 0 : static_cast<std::int32_t>(speculator.forced.size());
    asked_.emplace_back(pending.job, guess);
    requests_.push_back({.branch = pending.branch->id,
                         .history = pending.branch->log,
                         .forced = speculator.forced,
                         .max_nodes = before + std::min(kMaxNodes, static_cast<std::int32_t>(room)),
                         .max_depth = before + guess->plan.depth,
                         .row_worth = static_cast<float>(guess->plan.row_worth),
                         .level_worth = static_cast<float>(guess->plan.level_worth)});
  }
  if (requests_.empty()) return;
  try {
    time_drafting(source);
  } catch (const std::exception& error) {
    for (const auto& [job, guess] : asked_) {
      job->fail(ErrorKind::StepFailed, error_text("speculation failed: ", error.what()));
    }
    return;
  }
  for (std::size_t i = 0; i < asked_.size(); ++i) {
    Draft& draft = requests_[i].draft;
    asked_[i].second->draft = source.drafter->sees_forced ? std::move(draft) : draft.beyond(requests_[i].forced);
  }
}

void Speculation::plan(Guess& guess, const PendingDraft& pending) {
  const Speculator& speculator = *pending.speculator;
  const auto forced = static_cast<std::int32_t>(speculator.forced.size());
  const auto deepest = std::clamp(pending.max_depth - forced, 0, static_cast<std::int32_t>(AcceptanceRates::kLevels));
  const bool adaptive = guess.source->drafter->adaptive;
  guess.plan = adaptive ? guess.source->policy.plan(deepest, speculator.draft) : DraftPlan{.depth = deepest};
}

void Speculation::merge(Speculator& speculator) {
  for (const Guess& guess : speculator.guesses) {
    guess.source->policy.acceptance.path_probabilities(guess.draft, probabilities_);
    merge_.add(guess.draft, probabilities_);
  }
  speculator.draft = merge_.take();
}

void Speculation::time_drafting(DraftSource& source) {
  if (!source.error.empty()) throw ForwardFailed(std::exchange(source.error, {}));
  const auto start = Clock::now();
  source.drafter->propose(requests_);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  std::int32_t levels = 0;
  for (const DraftRequest& request : requests_) levels = std::max(levels, request.levels);
  if (levels == 0) levels = static_cast<std::int32_t>(AcceptanceRates::kLevels);  // depth costs nothing
  source.policy.learn_cost(seconds, levels, requests_.size());
  stats_.draft_seconds += seconds;
  ++stats_.draft_rounds;
}

std::size_t Speculation::keep_what_pays(std::size_t rows, std::size_t room) {
  rank_candidates();
  std::size_t n_kept = count_that_pays(rows, room);
  for (std::size_t n = 0; n < n_kept; ++n) {
    kept_[candidates_[n].pending][static_cast<std::size_t>(candidates_[n].node)] = true;
  }
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    Speculator& speculator = *pending_[i].speculator;
    n_kept += cut_to_kept(speculator, kept_[i], room - n_kept);
  }
  return n_kept;
}

// All nodes by the probability of their path. A node is never more likely than its parent, and stands behind it.
void Speculation::rank_candidates() {
  candidates_.clear();
  kept_.resize(std::max(kept_.size(), pending_.size()));
  for (std::uint32_t i = 0; i < pending_.size(); ++i) {
    const Speculator& speculator = *pending_[i].speculator;
    kept_[i].assign(speculator.draft.size(), false);
    speculator.draft.path_probabilities(probabilities_);
    for (std::size_t node = 0; node < probabilities_.size(); ++node) {
      candidates_.push_back(
          {probabilities_[node], i, static_cast<std::int32_t>(node), speculator.draft.is_forced(node)});
    }
  }
  std::stable_sort(candidates_.begin(), candidates_.end(),
                   [](const Candidate& a, const Candidate& b) { return a.probability > b.probability; });
}

// How many of the candidates make the most tokens per second: with rows that make a token each and nodes of
// probabilities p, a forward is expected to make rows + sum(p) tokens. What is forced behind a node counts with it: a
// part of that gains nothing, because the next forward takes the rest along with what it has found out.
std::size_t Speculation::count_that_pays(std::size_t rows, std::size_t room) const {
  auto tokens = static_cast<double>(rows);
  double best = (1 + options.tolerance) * tokens / cost_.seconds(rows);
  std::size_t count = 0;
  const std::size_t most = std::min(room, candidates_.size());
  for (std::size_t n = 0; n < most; ++n) {
    tokens += static_cast<double>(candidates_[n].probability);
    if (n + 1 < most && candidates_[n + 1].forced) continue;
    const double speed = tokens / cost_.seconds(rows + n + 1);
    if (speed > best || !pending_[candidates_[n].pending].speculator->adaptive()) {
      best = speed;
      count = n + 1;
    }
  }
  return count;
}

// Leaves the kept nodes in the draft. Returns how many nodes stay though nothing promises to pay.
std::size_t Speculation::cut_to_kept(Speculator& speculator, std::vector<bool>& kept, std::size_t room) {
  const bool pays = std::find(kept.begin(), kept.end(), true) != kept.end();
  const std::size_t tried = pays ? 0 : keep_for_trial(speculator, kept, room);
  keep_nodes(speculator.draft, kept, new_index_);
  for (Guess& guess : speculator.guesses) {
    const bool in_vain = common(guess.draft, speculator.draft).empty();
    if (pays && !in_vain) guess.source->policy.pays();
    if (guess.plan.depth > 0 && in_vain) guess.source->policy.acceptance.learn_levels(guess.plan.depth, 0);
  }
  return tried;
}

// Where a trial is due, the likely nodes stay, the first at least, to learn what a forward of as many rows costs.
std::size_t Speculation::keep_for_trial(const Speculator& speculator, std::vector<bool>& kept, std::size_t room) {
  const auto is_due = [](const Guess& guess) {
    return !guess.draft.empty() && (guess.plan.trial || guess.source->policy.take_trial());
  };
  if (room == 0 || std::none_of(speculator.guesses.begin(), speculator.guesses.end(), is_due)) return 0;
  std::size_t tried = 0;
  speculator.draft.path_probabilities(probabilities_);
  for (std::size_t node = 0; node < kept.size() && tried < room; ++node) {
    kept[node] = node == 0 || static_cast<double>(probabilities_[node]) >= kLikely;
    tried += kept[node];
  }
  return tried;
}

void Speculation::learn(const Speculator& speculator, std::span<const std::int32_t> accepted) {
  if (speculator.draft.empty()) return;
  stats_.drafted += speculator.draft.size();
  stats_.accepted += accepted.size();
  for (const Guess& guess : speculator.guesses) {
    const Draft verified = common(guess.draft, speculator.draft);
    if (verified.empty()) continue;
    const std::vector<std::int32_t> came_true = followed(speculator.draft, accepted, verified);
    Acceptance& acceptance = guess.source->policy.acceptance;
    acceptance.learn_nodes(verified, came_true);
    const auto n = static_cast<std::int32_t>(came_true.size());
    // Where all that was verified came true, nobody knows how the levels below would have done.
    const std::int32_t depth = verified.depth();
    acceptance.learn_levels(n == depth ? depth : guess.plan.depth, n);
  }
}

template <class What>
void Speculation::tell(What&& what) {
  for (const auto& source : sources_) {
    try {
      what(*source->drafter);
    } catch (const std::exception& error) {
      source->error = error.what();
    }
  }
}

void Speculation::observe(BranchId branch, Pos first, std::span<const Token> tokens, std::span<const float> features) {
  tell([&](Drafter& drafter) { drafter.observe(branch, first, tokens, features); });
}

void Speculation::shared(BranchId src, BranchId dst, Pos length) {
  tell([&](Drafter& drafter) { drafter.shared(src, dst, length); });
}

void Speculation::truncated(BranchId branch, Pos length) {
  tell([&](Drafter& drafter) { drafter.truncated(branch, length); });
}

void Speculation::closed(BranchId branch) {
  tell([&](Drafter& drafter) { drafter.closed(branch); });
}

}  // namespace agentkv
