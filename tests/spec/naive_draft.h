// What a draft tree must be, from a model without a cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "engine/draft.h"
#include "engine/reference_runner.h"
#include "engine/softmax.h"
#include "spec/draft_round.h"

namespace agentkv::testing {

// The logits after the tokens of a path that hangs from the branch's last token.
using Expand = std::function<std::vector<float>(const Tokens& path)>;

inline Draft naive_draft(const Expand& expand, TreeOptions options, int max_nodes, int max_depth,
                         const Tokens& target_of = {}) {
  struct Node {
    Tokens path;
    int parent;
    float confidence;
    float reach;
  };
  std::vector<Node> nodes;
  const auto better = [&](int a, int b) {
    const Node &x = nodes[static_cast<std::size_t>(a)], &y = nodes[static_cast<std::size_t>(b)];
    return x.reach != y.reach ? x.reach > y.reach : a < b;
  };
  const auto grow = [&](int parent) {
    const Tokens path = parent < 0 ? Tokens{} : nodes[static_cast<std::size_t>(parent)].path;
    const float reach = parent < 0 ? 1.0f : nodes[static_cast<std::size_t>(parent)].reach;
    const auto logits = expand(path);
    std::vector<Token> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    const auto at = [&](Token t) { return logits[static_cast<std::size_t>(t)]; };
    std::stable_sort(order.begin(), order.end(), [&](Token a, Token b) { return at(a) > at(b); });
    for (int i = 0; i < options.top_k && i < static_cast<int>(order.size()); ++i) {
      const Token token = order[static_cast<std::size_t>(i)];
      const double lse = summarise(logits).log_sum_exp;
      const auto p = std::min(1.0f, static_cast<float>(std::exp(static_cast<double>(at(token)) - lse)));
      Tokens longer = path;
      longer.push_back(target_of.empty() ? token : target_of[static_cast<std::size_t>(token)]);
      nodes.push_back({longer, parent, p, reach * p});
    }
  };
  std::vector<int> level{-1};
  for (int depth = 0; depth < max_depth; ++depth) {
    const int first = static_cast<int>(nodes.size());
    for (const int node : level) grow(node);
    level.resize(nodes.size() - static_cast<std::size_t>(first));
    std::iota(level.begin(), level.end(), first);
    std::sort(level.begin(), level.end(), better);
    level.resize(std::min(level.size(), static_cast<std::size_t>(options.width)));
    std::erase_if(level, [&](int node) { return nodes[static_cast<std::size_t>(node)].reach < options.min_reach; });
  }
  std::vector<int> order(nodes.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), better);
  order.resize(std::min(order.size(), static_cast<std::size_t>(max_nodes)));
  Draft draft;
  for (const int i : order) {
    const Node& node = nodes[static_cast<std::size_t>(i)];
    const auto parent = std::find(order.begin(), order.end(), node.parent);
    CHECK(node.parent < 0 || parent != order.end());
    draft.tokens.push_back(node.path.back());
    draft.parents.push_back(node.parent < 0 ? -1 : static_cast<int>(parent - order.begin()));
    draft.confidence.push_back(node.confidence);
  }
  return draft;
}

inline void check_same(const Draft& a, const Draft& b) {
  CHECK_EQ(a.size(), b.size());
  CHECK(a.tokens == b.tokens);
  CHECK(a.parents == b.parents);
  CHECK(a.confidence == b.confidence);
}

}  // namespace agentkv::testing
