#include "spec/draft_tree.h"

#include <algorithm>
#include <numeric>

namespace agentkv {

void DraftTree::clear() {
  nodes_.clear();
  ran_.clear();
  order_.clear();
  fresh_ = 0;
}

void DraftTree::grow(std::int32_t parent, std::int32_t row, std::span<const LikelyToken> children,
                     std::span<const Token> target_of) {
  const float reach = parent < 0 ? 1.0f : at(parent).reach;
  for (const auto [token, probability] : children) {
    const Token target = target_of.empty() ? token : target_of[static_cast<std::size_t>(token)];
    nodes_.push_back({target, parent, row, -1, probability, reach * probability});
  }
}

void DraftTree::rank(std::int32_t first, std::int32_t count) {
  order_.resize(static_cast<std::size_t>(size() - first));
  std::iota(order_.begin(), order_.end(), first);
  const auto kept = std::min(order_.size(), static_cast<std::size_t>(std::max(count, 0)));
  // Equal reach: the earlier node, so that no child comes before its parent.
  const auto better = [this](std::int32_t a, std::int32_t b) {
    return at(a).reach != at(b).reach ? at(a).reach > at(b).reach : a < b;
  };
  std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(kept), order_.end(), better);
  order_.resize(kept);
}

std::span<const std::int32_t> DraftTree::choose(std::int32_t width, float min_reach, float min_sum) {
  rank(fresh_, width);
  while (!order_.empty() && at(order_.back()).reach < min_reach) order_.pop_back();
  float sum = 0;
  for (const std::int32_t node : order_) sum += at(node).reach;
  if (sum < min_sum) order_.clear();
  fresh_ = size();
  for (const std::int32_t node : order_) {
    nodes_[static_cast<std::size_t>(node)].place = static_cast<std::int32_t>(ran_.size());
    ran_.push_back(node);
  }
  return order_;
}

std::int32_t DraftTree::child_that_ran(std::int32_t parent, Token token) const {
  for (const std::int32_t node : ran_) {
    if (at(node).parent == parent && at(node).token == token) return node;
  }
  return -1;
}

void DraftTree::best(std::int32_t max_nodes, Draft& draft) {
  rank(0, max_nodes);
  index_.resize(nodes_.size());
  draft.tokens.reserve(order_.size());
  draft.parents.reserve(order_.size());
  draft.confidence.reserve(order_.size());
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const Node& node = at(order_[i]);
    index_[static_cast<std::size_t>(order_[i])] = static_cast<std::int32_t>(i);
    draft.tokens.push_back(node.token);
    draft.parents.push_back(node.parent < 0 ? -1 : index_[static_cast<std::size_t>(node.parent)]);
    draft.confidence.push_back(node.confidence);
  }
}

}  // namespace agentkv
