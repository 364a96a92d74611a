#include "engine/constrained_draft.h"

#include <algorithm>
#include <vector>

namespace agentkv {
namespace {

constexpr std::int32_t kLeftOut = -2;

}  // namespace

ConstrainedDraft::ConstrainedDraft(std::span<const Token> forced, const Draft* guess,
                                   std::span<const std::int32_t> allowed, std::size_t most_guessed)
    : n_forced_(forced.size()) {
  const auto last_forced = static_cast<std::int32_t>(forced.size()) - 1;
  for (std::int32_t node = 0; node <= last_forced; ++node) {
    draft.tokens.push_back(forced[static_cast<std::size_t>(node)]);
    draft.parents.push_back(node - 1);
  }
  if (!guess) return;
  if (!guess->confidence.empty()) draft.confidence.assign(n_forced_, 1.0f);
  std::vector<std::int32_t> index(guess->size(), kLeftOut);
  for (const std::int32_t node : allowed) {
    const auto at = static_cast<std::size_t>(node);
    const std::int32_t old_parent = guess->parents[at];
    const std::int32_t parent = old_parent < 0 ? -1 : index[static_cast<std::size_t>(old_parent)];
    if (parent == kLeftOut) continue;
    if (parent < last_forced) {  // the next forced token is the only one that may follow
      if (draft.tokens[static_cast<std::size_t>(parent + 1)] == guess->tokens[at]) index[at] = parent + 1;
    } else if (draft.size() < n_forced_ + most_guessed) {
      index[at] = static_cast<std::int32_t>(draft.size());
      add(*guess, at, parent);
    }
  }
}

void ConstrainedDraft::add(const Draft& guess, std::size_t node, std::int32_t parent) {
  draft.tokens.push_back(guess.tokens[node]);
  draft.parents.push_back(parent);
  if (!guess.confidence.empty()) draft.confidence.push_back(guess.confidence[node]);
}

Draft ConstrainedDraft::guessed() const {
  Draft rest;
  const auto shift = static_cast<std::int32_t>(n_forced_);
  for (std::size_t node = n_forced_; node < draft.size(); ++node) {
    rest.tokens.push_back(draft.tokens[node]);
    rest.parents.push_back(std::max(draft.parents[node] - shift, -1));
    if (!draft.confidence.empty()) rest.confidence.push_back(draft.confidence[node]);
  }
  return rest;
}

std::vector<std::int32_t> ConstrainedDraft::guessed_of(std::span<const std::int32_t> chain) const {
  std::vector<std::int32_t> rest;
  const auto shift = static_cast<std::int32_t>(n_forced_);
  for (const std::int32_t node : chain) {
    if (node >= shift) rest.push_back(node - shift);
  }
  return rest;
}

}  // namespace agentkv
