// Drafts as sets of paths: what is merged, what two have in common, and what follows some tokens.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "cpp/check.h"
#include "engine/draft_merge.h"

namespace agentkv {
namespace {

using Tokens = std::vector<Token>;
using Paths = std::map<Tokens, float>;

std::vector<Tokens> paths_of(const Draft& draft) {
  std::vector<Tokens> paths;
  for (std::size_t node = 0; node < draft.size(); ++node) {
    const std::int32_t parent = draft.parents[node];
    paths.push_back(parent < 0 ? Tokens{} : paths[static_cast<std::size_t>(parent)]);
    paths.back().push_back(draft.tokens[node]);
  }
  return paths;
}

Paths with(const Draft& draft, const std::vector<float>& values) {
  Paths paths;
  for (const Tokens& path : paths_of(draft)) paths[path] = values[paths.size()];
  return paths;
}

Draft random_draft(std::mt19937& random, bool confident) {
  Draft draft;
  const std::size_t nodes = random() % 12;
  for (int tries = 0; draft.size() < nodes && tries < 50; ++tries) {
    const auto parent = static_cast<std::int32_t>(random() % (draft.size() + 1)) - 1;
    const auto token = static_cast<Token>(random() % 3);
    if (draft.child(parent, token) >= 0) continue;
    draft.tokens.push_back(token);
    draft.parents.push_back(parent);
    if (confident) draft.confidence.push_back(0.1f + 0.2f * static_cast<float>(random() % 5));
  }
  return draft;
}

std::vector<float> random_paths(const Draft& draft, std::mt19937& random) {
  std::vector<float> paths;
  for (const std::int32_t parent : draft.parents) {
    const float above = parent < 0 ? 1 : paths[static_cast<std::size_t>(parent)];
    paths.push_back(above * static_cast<float>(random() % 11) / 10);
  }
  return paths;
}

void a_merge_has_every_path_as_likely_as_its_surest_guess() {
  std::mt19937 random(3);
  DraftMerge merge;
  for (int round = 0; round < 2000; ++round) {
    std::map<Tokens, float> want;
    for (std::size_t guesses = random() % 4; guesses > 0; --guesses) {
      const Draft guess = random_draft(random, random() % 2);
      const std::vector<float> paths = random_paths(guess, random);
      merge.add(guess, paths);
      std::size_t node = 0;
      for (const Tokens& path : paths_of(guess)) want[path] = std::max(want[path], paths[node++]);
    }
    const Draft merged = merge.take();
    check_draft(merged, 3);
    std::vector<float> got;
    merged.path_probabilities(got);
    const std::vector<Tokens> paths = paths_of(merged);
    CHECK_EQ(paths.size(), want.size());
    for (std::size_t node = 0; node < paths.size(); ++node) {
      CHECK(std::abs(got[node] - want.at(paths[node])) < 2e-3f);
      CHECK(!merged.is_forced(node));
    }
  }
}

void what_two_have_in_common_are_their_common_paths() {
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    const Draft one = random_draft(random, true), other = random_draft(random, false);
    const Draft both = common(one, other);
    check_draft(both, 3);
    const Paths ours = with(one, one.confidence), got = with(both, both.confidence);
    const std::vector<Tokens> theirs = paths_of(other);
    std::size_t n = 0;
    for (const auto& [path, confidence] : ours) {
      if (std::find(theirs.begin(), theirs.end(), path) == theirs.end()) continue;
      CHECK(got.at(path) == confidence);
      ++n;
    }
    CHECK_EQ(got.size(), n);
  }
}

void a_chain_is_followed_as_far_as_the_other_has_it() {
  const Draft one{.tokens = {5, 6, 7}, .parents = {-1, 0, 1}, .confidence = {}};
  const Draft other{.tokens = {4, 5, 6, 6}, .parents = {-1, -1, 0, 1}, .confidence = {}};
  CHECK(followed(one, std::vector{0, 1, 2}, other) == std::vector<std::int32_t>({1, 3}));
  CHECK(followed(one, {}, other).empty());
  CHECK(followed(other, std::vector{0}, one).empty());
}

void what_follows_tokens_is_what_begins_with_them() {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const Draft draft = random_draft(random, true);
    Tokens before(random() % 3);
    for (Token& token : before) token = static_cast<Token>(random() % 3);
    const Draft rest = draft.beyond(before);
    check_draft(rest, 3);
    const Paths got = with(rest, rest.confidence);
    std::size_t n = 0;
    for (const auto& [path, confidence] : with(draft, draft.confidence)) {
      if (path.size() <= before.size() || !std::equal(before.begin(), before.end(), path.begin())) continue;
      CHECK(got.at(Tokens(path.begin() + static_cast<std::ptrdiff_t>(before.size()), path.end())) == confidence);
      ++n;
    }
    CHECK_EQ(got.size(), n);
  }
}

void levels_are_reached_as_likely_as_their_nodes_together() {
  const Draft draft{.tokens = {1, 2, 3}, .parents = {-1, -1, 0}, .confidence = {0.5f, 0.25f, 0.5f}};
  CHECK(draft.level_probabilities() == std::vector<double>({0.75, 0.25}));
  CHECK(Draft{}.level_probabilities().empty());
}

}  // namespace
}  // namespace agentkv

int main() {
  using namespace agentkv;
  a_merge_has_every_path_as_likely_as_its_surest_guess();
  what_two_have_in_common_are_their_common_paths();
  a_chain_is_followed_as_far_as_the_other_has_it();
  what_follows_tokens_is_what_begins_with_them();
  levels_are_reached_as_likely_as_their_nodes_together();
}
