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

DraftSource& Speculation::attach(std::shared_ptr<Drafter> drafter) {
  if (!drafter) throw InvalidEngine("there is no drafter to attach");
  for (const auto& source : sources_) {
    if (source->drafter == drafter) return *source;
  }
  DraftPolicy policy(options, cost_, drafter->prior);
  sources_.push_back(std::make_unique<DraftSource>(std::move(drafter), std::move(policy)));
  return *sources_.back();
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

std::size_t Speculation::propose(std::size_t rows, std::size_t room) {
  if (pending_.empty()) return 0;
  for (const auto& source : sources_) ask(*source, rows, room);
  const std::size_t kept = keep_what_pays(rows, room);
  for (const PendingDraft& pending : pending_) {
    Speculator& speculator = *pending.speculator;
    const std::int32_t depth = speculator.plan.depth;
    if (depth > 0 && speculator.draft.empty())
      speculator.source.policy.acceptance.learn_levels(depth, 0);  // drafted in vain
  }
  return kept;
}

void Speculation::ask(DraftSource& source, std::size_t rows, std::size_t room) {
  const bool adaptive = source.drafter->adaptive;
  source.policy.begin_round(rows, pending_.size());
  requests_.clear();
  asked_.clear();
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    const PendingDraft& pending = pending_[i];
    if (&pending.speculator->source != &source) continue;
    Speculator& speculator = *pending.speculator;
    const auto deepest = std::min(pending.max_depth, static_cast<std::int32_t>(AcceptanceRates::kLevels));
    speculator.draft = {};
    speculator.plan = {};
    if (room > 0) speculator.plan = adaptive ? source.policy.plan(deepest) : DraftPlan{.depth = deepest};
    if (speculator.plan.depth == 0) continue;
    asked_.push_back(static_cast<std::uint32_t>(i));
    requests_.push_back({.branch = pending.branch->id,
                         .history = pending.branch->log,
                         .max_nodes = std::min(kMaxNodes, static_cast<std::int32_t>(room)),
                         .max_depth = speculator.plan.depth,
                         .row_worth = static_cast<float>(speculator.plan.row_worth),
                         .level_worth = static_cast<float>(speculator.plan.level_worth)});
  }
  if (requests_.empty()) return;
  try {
    time_drafting(source);
  } catch (const std::exception& error) {
    for (const std::uint32_t i : asked_) {
      pending_[i].job->fail(ErrorKind::StepFailed, error_text("speculation failed: ", error.what()));
    }
    return;
  }
  for (std::size_t i = 0; i < asked_.size(); ++i) pending_[asked_[i]].speculator->draft = std::move(requests_[i].draft);
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
  if (candidates_.empty()) return 0;
  std::size_t n_kept = count_that_pays(rows, room);
  for (std::size_t n = 0; n < n_kept; ++n) {
    kept_[candidates_[n].pending][static_cast<std::size_t>(candidates_[n].node)] = true;
  }
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    Speculator& speculator = *pending_[i].speculator;
    if (!speculator.draft.empty()) n_kept += cut_to_kept(speculator, kept_[i], room - n_kept);
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
    speculator.source.policy.acceptance.path_probabilities(speculator.draft, probabilities_);
    for (std::size_t node = 0; node < probabilities_.size(); ++node) {
      candidates_.push_back({probabilities_[node], i, static_cast<std::int32_t>(node)});
    }
  }
  std::stable_sort(candidates_.begin(), candidates_.end(),
                   [](const Candidate& a, const Candidate& b) { return a.probability > b.probability; });
}

// How many of the candidates make the most tokens per second: with rows that make a token each and nodes of
// probabilities p, a forward is expected to make rows + sum(p) tokens.
std::size_t Speculation::count_that_pays(std::size_t rows, std::size_t room) const {
  auto tokens = static_cast<double>(rows);
  double best = (1 + options.tolerance) * tokens / cost_.seconds(rows);
  std::size_t count = 0;
  for (std::size_t n = 0; n < std::min(room, candidates_.size()); ++n) {
    tokens += static_cast<double>(candidates_[n].probability);
    const double speed = tokens / cost_.seconds(rows + n + 1);
    if (speed > best || !pending_[candidates_[n].pending].speculator->source.drafter->adaptive) {
      best = speed;
      count = n + 1;
    }
  }
  return count;
}

// Leaves the kept nodes in the draft. Where there are none and a trial is due, the likely ones stay, the first at
// least, to learn what a forward of as many rows costs. Returns how many nodes stay for that.
std::size_t Speculation::cut_to_kept(Speculator& speculator, std::vector<bool>& kept, std::size_t room) {
  DraftPolicy& policy = speculator.source.policy;
  const bool none = std::find(kept.begin(), kept.end(), true) == kept.end();
  if (!none) policy.pays();
  std::size_t tried = 0;
  if (none && room > 0 && (speculator.plan.trial || policy.take_trial())) {
    policy.acceptance.path_probabilities(speculator.draft, probabilities_);
    for (std::size_t node = 0; node < kept.size() && tried < room; ++node) {
      kept[node] = node == 0 || static_cast<double>(probabilities_[node]) >= kLikely;
      tried += kept[node];
    }
  }
  keep_nodes(speculator.draft, kept, new_index_);
  return tried;
}

void Speculation::learn(Speculator& speculator, std::span<const std::int32_t> accepted) {
  if (speculator.draft.empty()) return;
  stats_.drafted += speculator.draft.size();
  stats_.accepted += accepted.size();
  speculator.source.policy.acceptance.learn_nodes(speculator.draft, accepted);
  const auto n_accepted = static_cast<std::int32_t>(accepted.size());
  // Where all that was verified came true, nobody knows how the levels below would have done.
  const std::int32_t verified = speculator.draft.depth();
  speculator.source.policy.acceptance.learn_levels(n_accepted == verified ? verified : speculator.plan.depth,
                                                   n_accepted);
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
