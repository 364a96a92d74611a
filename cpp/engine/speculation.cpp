#include "engine/speculation.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/errors.h"
#include "core/message.h"
#include "engine/job.h"

namespace agentkv {
namespace {

constexpr std::int32_t kMostNodes = 64;  // of one draft
constexpr double kMostWorth = 0.9;       // what is more likely than this is always drafted

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
  sources_.push_back(std::make_unique<DraftSource>(std::move(drafter)));
  return *sources_.back();
}

std::size_t Speculation::propose(std::size_t rows, std::size_t room) {
  if (wishes_.empty()) return 0;
  for (const auto& source : sources_) ask(*source, rows, room);
  const std::size_t kept = keep_what_pays(rows, room);
  for (const DraftWish& wish : wishes_) {
    Speculator& speculator = *wish.speculator;
    if (speculator.depth > 0 && speculator.draft.empty()) speculator.pace.learn(speculator.depth, 0);  // in vain
  }
  return kept;
}

void Speculation::ask(DraftSource& source, std::size_t rows, std::size_t room) {
  const auto of_source = [&](const DraftWish& wish) { return &wish.speculator->source == &source; };
  const auto n_rows = static_cast<double>(rows);
  const double row_seconds = cost.row_seconds();
  TargetShare share;
  for (std::size_t level = 0; level < share.size(); ++level) {
    share[level] = cost.seconds(rows + level * wishes_.size()) / n_rows;
  }
  const double level_rows_seconds = row_seconds * static_cast<double>(wishes_.size()) / n_rows;
  source.pace.begin_round();
  requests_.clear();
  asked_.clear();
  const auto worth = [&](double seconds) {
    return source.drafter->adaptive ? static_cast<float>(std::min(kMostWorth, seconds / cost.token_seconds())) : 0.0f;
  };
  for (std::size_t i = 0; i < wishes_.size(); ++i) {
    const DraftWish& wish = wishes_[i];
    if (!of_source(wish)) continue;
    Speculator& speculator = *wish.speculator;
    speculator.draft = {};
    speculator.depth = std::min(wish.max_depth, DrafterPace::kMostLevels);
    if (source.drafter->adaptive) {
      speculator.depth = speculator.pace.depth(wish.max_depth, share);
    }
    if (room == 0) speculator.depth = 0;
    if (speculator.depth == 0) continue;
    asked_.push_back(static_cast<std::uint32_t>(i));
    requests_.push_back({.branch = wish.branch->id,
                         .history = wish.branch->log,
                         .max_nodes = std::min(kMostNodes, static_cast<std::int32_t>(room)),
                         .max_depth = speculator.depth,
                         .row_worth = worth(row_seconds),
                         .level_worth = worth(source.pace.level_seconds.value() + level_rows_seconds)});
  }
  if (requests_.empty()) return;

  const auto start = std::chrono::steady_clock::now();
  try {
    if (!source.error.empty()) throw ForwardFailed(std::exchange(source.error, {}));
    source.drafter->propose(requests_);
  } catch (const std::exception& error) {
    for (const std::uint32_t i : asked_) {
      wishes_[i].job->fail(ErrorKind::StepFailed, error_text("speculation failed: ", error.what()));
    }
    return;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::int32_t levels = 0;
  for (const DraftRequest& request : requests_) levels = std::max(levels, request.levels);
  source.pace.learn_cost(seconds, levels > 0 ? levels : DrafterPace::kMostLevels, requests_.size());
  stats_.draft_seconds += seconds;
  seconds_ += seconds;
  ++stats_.draft_rounds;
  for (std::size_t i = 0; i < asked_.size(); ++i) wishes_[asked_[i]].speculator->draft = std::move(requests_[i].draft);
}

// Nodes join in the order of their probability, for as long as that makes more tokens per second: with B rows
// that each make a token and nodes of probabilities p, a forward is worth B + sum(p) tokens. A node never joins before
// its parent.
std::size_t Speculation::keep_what_pays(std::size_t rows, std::size_t room) {
  candidates_.clear();
  kept_.resize(std::max(kept_.size(), wishes_.size()));
  for (std::uint32_t i = 0; i < wishes_.size(); ++i) {
    const Speculator& speculator = *wishes_[i].speculator;
    kept_[i].assign(speculator.draft.size(), false);
    speculator.pace.acceptance.path_probabilities(speculator.draft, probabilities_);
    for (std::size_t node = 0; node < probabilities_.size(); ++node) {
      candidates_.push_back({probabilities_[node], i, static_cast<std::int32_t>(node)});
    }
  }
  if (candidates_.empty()) return 0;
  std::stable_sort(candidates_.begin(), candidates_.end(),
                   [](const Candidate& a, const Candidate& b) { return a.probability > b.probability; });
  auto tokens = static_cast<double>(rows);
  double best = kMargin * tokens / cost.seconds(rows);
  std::size_t n_kept = 0;
  for (std::size_t n = 0; n < std::min(room, candidates_.size()); ++n) {
    tokens += static_cast<double>(candidates_[n].probability);
    const double speed = tokens / cost.seconds(rows + n + 1);
    if (speed > best || !wishes_[candidates_[n].wish].speculator->source.drafter->adaptive) {
      best = speed;
      n_kept = n + 1;
    }
  }
  for (std::size_t n = 0; n < n_kept; ++n) {
    kept_[candidates_[n].wish][static_cast<std::size_t>(candidates_[n].node)] = true;
  }
  for (std::size_t i = 0; i < wishes_.size(); ++i) {
    if (!wishes_[i].speculator->draft.empty()) n_kept += cut_to_kept(*wishes_[i].speculator, kept_[i], n_kept < room);
  }
  return n_kept;
}

// Leaves the kept nodes in the draft. Where there are none, now and then the first one stays to be verified: drafts may
// have become better. Returns 1 for such a node.
std::size_t Speculation::cut_to_kept(Speculator& speculator, std::vector<bool>& kept, bool has_room) {
  const bool none = std::find(kept.begin(), kept.end(), true) == kept.end();
  const bool tries = none && has_room && speculator.pace.due();
  if (tries) kept[0] = true;
  keep_nodes(speculator.draft, kept, new_index_);
  return tries ? 1 : 0;
}

void Speculation::learn(Speculator& speculator, std::span<const std::int32_t> accepted) {
  if (speculator.draft.empty()) return;
  stats_.drafted += speculator.draft.size();
  stats_.accepted += accepted.size();
  speculator.pace.acceptance.learn(speculator.draft, accepted);
  const auto n_accepted = static_cast<std::int32_t>(accepted.size());
  // Where the whole depth came true, nobody knows how the levels below would have done.
  const std::int32_t verified = speculator.draft.depth();
  speculator.pace.learn(n_accepted == verified ? verified : speculator.depth, n_accepted);
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
