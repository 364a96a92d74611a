#include "engine/constrained_draft.h"

#include <algorithm>

namespace agentkv {
namespace {

constexpr std::int32_t kLeftOut = -2;

void add_node(Draft& draft, Token token, std::int32_t parent) {
  draft.tokens.push_back(token);
  draft.parents.push_back(parent);
}

}  // namespace

ConstrainedDraft::ConstrainedDraft(std::span<const Token> forced) : n_forced_(forced.size()) {
  for (const Token token : forced) add_node(draft, token, static_cast<std::int32_t>(draft.size()) - 1);
}

void ConstrainedDraft::follow_with(const Draft& guess) {
  const auto shift = static_cast<std::int32_t>(n_forced_);
  draft.cut(n_forced_);
  draft.confidence.assign(guess.confidence.empty() ? 0 : n_forced_, 1.0f);
  for (std::size_t node = 0; node < guess.size(); ++node) {
    add_node(draft, guess.tokens[node], guess.parents[node] + shift);
  }
  draft.confidence.insert(draft.confidence.end(), guess.confidence.begin(), guess.confidence.end());
}

void ConstrainedDraft::grow(const DraftTurn& turn, std::int32_t max_depth) {
  const Draft before = std::exchange(draft, {});
  std::vector<std::int32_t> index(before.size() + turn.added.size(), kLeftOut);
  std::vector<std::int32_t> depths;
  const auto add = [&](std::int32_t node, Token token, std::int32_t old_parent, float confidence) {
    const std::int32_t parent = old_parent < 0 ? -1 : index[static_cast<std::size_t>(old_parent)];
    const std::int32_t above = parent < 0 ? 0 : depths[static_cast<std::size_t>(parent)];
    if (parent == kLeftOut || above == max_depth) return;
    depths.push_back(above + 1);
    index[static_cast<std::size_t>(node)] = static_cast<std::int32_t>(draft.size());
    add_node(draft, token, parent);
    if (!before.confidence.empty()) draft.confidence.push_back(confidence);
  };
  for (const std::int32_t node : turn.allowed) {
    const auto at = static_cast<std::size_t>(node);
    add(node, before.tokens[at], before.parents[at], before.confidence.empty() ? 0 : before.confidence[at]);
  }
  for (std::size_t i = 0; i < turn.added.size(); ++i) {
    add(static_cast<std::int32_t>(before.size() + i), turn.added[i], turn.added_parents[i], 1);
  }
}

Draft ConstrainedDraft::guessed() const {
  Draft rest;
  const auto shift = static_cast<std::int32_t>(n_forced_);
  for (std::size_t node = n_forced_; node < draft.size(); ++node) {
    add_node(rest, draft.tokens[node], std::max(draft.parents[node] - shift, -1));
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
