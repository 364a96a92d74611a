#include "engine/draft_merge.h"

#include <algorithm>
#include <utility>

namespace agentkv {
namespace {

constexpr std::int32_t kNone = -2;
// A guess is never certain, as what a constraint forces is, and never impossible.
constexpr float kMost = 0.9999f, kLeast = 1e-6f;

// The node of `to` for each node of `from`: the child of its parent's with the same token, or else what `missing`
// makes.
template <class Missing>
std::vector<std::int32_t> mapped(const Draft& from, const Draft& to, Missing&& missing) {
  std::vector<std::int32_t> index(from.size());
  for (std::size_t node = 0; node < from.size(); ++node) {
    const std::int32_t old_parent = from.parents[node];
    const std::int32_t parent = old_parent < 0 ? -1 : index[static_cast<std::size_t>(old_parent)];
    const std::int32_t there = parent == kNone ? kNone : to.child(parent, from.tokens[node]);
    index[node] = there < 0 ? missing(node, parent) : there;
  }
  return index;
}

}  // namespace

void DraftMerge::add(const Draft& guess, std::span<const float> paths) {
  const std::vector<std::int32_t> index = mapped(guess, draft_, [&](std::size_t node, std::int32_t parent) {
    draft_.tokens.push_back(guess.tokens[node]);
    draft_.parents.push_back(parent);
    paths_.push_back(0);
    return static_cast<std::int32_t>(draft_.size()) - 1;
  });
  for (std::size_t node = 0; node < guess.size(); ++node) {
    float& path = paths_[static_cast<std::size_t>(index[node])];
    path = std::max(path, paths[node]);
  }
}

Draft DraftMerge::take() {
  for (std::size_t node = 0; node < draft_.size(); ++node) {
    const std::int32_t parent = draft_.parents[node];
    const float above = parent < 0 ? 1 : paths_[static_cast<std::size_t>(parent)];
    draft_.confidence.push_back(above > 0 ? std::clamp(paths_[node] / above, kLeast, kMost) : kLeast);
  }
  paths_.clear();
  return std::exchange(draft_, {});
}

Draft common(const Draft& one, const Draft& other) {
  const std::vector<std::int32_t> there = mapped(one, other, [](std::size_t, std::int32_t) { return kNone; });
  Draft both;
  std::vector<std::int32_t> index(one.size());
  for (std::size_t node = 0; node < one.size(); ++node) {
    if (there[node] == kNone) continue;
    const std::int32_t parent = one.parents[node];
    index[node] = static_cast<std::int32_t>(both.size());
    both.tokens.push_back(one.tokens[node]);
    both.parents.push_back(parent < 0 ? -1 : index[static_cast<std::size_t>(parent)]);
    if (!one.confidence.empty()) both.confidence.push_back(one.confidence[node]);
  }
  return both;
}

std::vector<std::int32_t> followed(const Draft& one, std::span<const std::int32_t> chain, const Draft& other) {
  std::vector<std::int32_t> nodes;
  for (const std::int32_t node : chain) {
    const std::int32_t parent = nodes.empty() ? -1 : nodes.back();
    const std::int32_t there = other.child(parent, one.tokens[static_cast<std::size_t>(node)]);
    if (there < 0) break;
    nodes.push_back(there);
  }
  return nodes;
}

}  // namespace agentkv
