#include "engine/draft.h"

#include <algorithm>

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {
namespace {

void check_node(const Draft& draft, std::size_t node, std::int32_t vocab_size) {
  const Token token = draft.tokens[node];
  const std::int32_t parent = draft.parents[node];
  if (token < 0 || token >= vocab_size) {
    throw InvalidDraft(
        error_text("node ", node, " of the draft is token ", token, ", but it must be in [0, ", vocab_size, ")"));
  }
  if (parent < -1 || parent >= static_cast<std::int32_t>(node)) {
    throw InvalidDraft(error_text("node ", node, " of the draft has parent ", parent, ", but it must be in [-1, ", node,
                                  "): an earlier node, or -1 for the branch's last token"));
  }
  for (std::size_t other = 0; other < node; ++other) {
    if (draft.parents[other] == parent && draft.tokens[other] == token) {
      throw InvalidDraft(error_text("nodes ", other, " and ", node, " of the draft are both token ", token,
                                    " after node ", parent, ": keep one of them"));
    }
  }
  if (draft.confidence.empty()) return;
  const float confidence = draft.confidence[node];
  if (!(confidence > 0 && confidence <= 1)) {
    throw InvalidDraft(
        error_text("node ", node, " of the draft has confidence ", confidence, ", but it must be in (0, 1]"));
  }
}

}  // namespace

void Draft::cut(std::size_t n) {
  if (n >= size()) return;
  tokens.resize(n);
  parents.resize(n);
  if (!confidence.empty()) confidence.resize(n);
}

void Draft::node_depths(std::vector<std::int32_t>& out) const {
  out.resize(size());
  for (std::size_t node = 0; node < size(); ++node) {
    out[node] = 1 + (parents[node] < 0 ? 0 : out[static_cast<std::size_t>(parents[node])]);
  }
}

std::int32_t Draft::depth() const {
  std::vector<std::int32_t> depths;
  node_depths(depths);
  return depths.empty() ? 0 : *std::max_element(depths.begin(), depths.end());
}

std::int32_t Draft::child(std::int32_t parent, Token token) const {
  for (std::size_t node = static_cast<std::size_t>(parent + 1); node < size(); ++node) {
    if (parents[node] == parent && tokens[node] == token) return static_cast<std::int32_t>(node);
  }
  return -1;
}

void Draft::path_probabilities(std::vector<float>& out) const {
  out.resize(size());
  for (std::size_t node = 0; node < size(); ++node) {
    out[node] = confidence[node] * (parents[node] < 0 ? 1.0f : out[static_cast<std::size_t>(parents[node])]);
  }
}

std::vector<double> Draft::level_probabilities() const {
  std::vector<float> paths;
  std::vector<std::int32_t> depths;
  path_probabilities(paths);
  node_depths(depths);
  std::vector<double> levels(static_cast<std::size_t>(depth()));
  for (std::size_t node = 0; node < size(); ++node) {
    levels[static_cast<std::size_t>(depths[node]) - 1] += static_cast<double>(paths[node]);
  }
  return levels;
}

Draft Draft::beyond(std::span<const Token> path) const {
  constexpr std::int32_t kOther = -2;
  std::int32_t root = -1;
  for (const Token token : path) {
    root = child(root, token);
    if (root < 0) return {};
  }
  Draft rest;
  std::vector<std::int32_t> index(size(), kOther);
  for (auto node = static_cast<std::size_t>(root + 1); node < size(); ++node) {
    const std::int32_t parent = parents[node];
    if (parent != root && (parent < 0 || index[static_cast<std::size_t>(parent)] == kOther)) continue;
    index[node] = static_cast<std::int32_t>(rest.size());
    rest.tokens.push_back(tokens[node]);
    rest.parents.push_back(parent == root ? -1 : index[static_cast<std::size_t>(parent)]);
    if (!confidence.empty()) rest.confidence.push_back(confidence[node]);
  }
  return rest;
}

void check_draft(const Draft& draft, std::int32_t vocab_size) {
  const std::size_t n = draft.size();
  if (draft.parents.size() != n || (!draft.confidence.empty() && draft.confidence.size() != n)) {
    throw InvalidDraft(error_text("the draft has ", n, " tokens, ", draft.parents.size(), " parents and ",
                                  draft.confidence.size(), " confidences, but needs one of each per node"));
  }
  for (std::size_t node = 0; node < n; ++node) check_node(draft, node, vocab_size);
}

}  // namespace agentkv
