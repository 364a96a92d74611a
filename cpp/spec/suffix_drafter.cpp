#include "spec/suffix_drafter.h"

#include <algorithm>
#include <tuple>

#include "spec/check_options.h"

namespace agentkv {
namespace {

constexpr std::int32_t kMaxMatch = 32;     // tokens compared
constexpr std::int32_t kOccurrences = 32;  // counted, the newest
constexpr float kLeastConfidence = 1e-6f;

double weight(std::int32_t agree) { return static_cast<double>(agree) * agree; }

const SuffixOptions& checked(const SuffixOptions& options) {
  check_range("max_nodes", options.max_nodes, 1, INT32_MAX);
  check_range("max_tokens", options.max_tokens, NgramIndex::kLeastTokens, INT64_MAX);
  return options;
}

}  // namespace

SuffixDrafter::SuffixDrafter(const SuffixOptions& options)
    : TextDrafter({{1, 2, 4, 8, 16}, kMaxMatch, checked(options).max_tokens, options.spellings}), options_(options) {}

void SuffixDrafter::read_corpus(std::span<const Token> text) {
  NgramIndex::Line line;
  index_.extend(line, text);
  first_own_ = index_.next_document();
}

void SuffixDrafter::propose(std::span<DraftRequest> requests) {
  for (DraftRequest& request : requests) {
    if (request.history.empty()) continue;
    collect(request);
    if (!occurrences_.empty()) grow(request);
  }
}

void SuffixDrafter::collect(const DraftRequest& request) {
  const NgramIndex::Line& line = caught_up(request.branch, request.history);
  const std::span<const Token> end = end_of(request);
  index_.find(end, kOccurrences, matches_);
  occurrences_.clear();
  for (const NgramIndex::Match& match : matches_) {
    occurrences_.push_back(
        {index_.after(match.end), match.length, index_.ends_at(line, match.end.document), end.back()});
  }
}

// Best first: the likeliest node that is left joins the draft, and what may follow it is left in its place.
void SuffixDrafter::grow(DraftRequest& request) {
  const auto less_likely = [this](std::int32_t one, std::int32_t other) {
    const Node &a = nodes_[static_cast<std::size_t>(one)], &b = nodes_[static_cast<std::size_t>(other)];
    return a.path != b.path ? a.path < b.path : one > other;
  };
  const auto max_nodes = static_cast<std::size_t>(std::min(options_.max_nodes, request.max_nodes));
  Draft& draft = request.draft;
  path_.assign(1, request.history.back());
  path_.insert(path_.end(), request.forced.begin(), request.forced.end());
  before_ = path_.size();
  nodes_.assign(1, {.parent = -1,
                    .depth = 0,
                    .token = path_.back(),
                    .confidence = 1,
                    .path = 1,
                    .begin = 0,
                    .end = static_cast<std::uint32_t>(occurrences_.size())});
  open_.clear();
  std::int32_t at = 0;
  while (draft.size() < max_nodes) {
    const auto children = static_cast<std::int32_t>(nodes_.size());
    if (nodes_[static_cast<std::size_t>(at)].depth < request.max_depth) expand(at);
    for (auto child = children; child < static_cast<std::int32_t>(nodes_.size()); ++child) {
      open_.push_back(child);
      std::push_heap(open_.begin(), open_.end(), less_likely);
    }
    if (open_.empty()) return;
    std::pop_heap(open_.begin(), open_.end(), less_likely);
    at = open_.back();
    open_.pop_back();
    Node& node = nodes_[static_cast<std::size_t>(at)];
    node.place = static_cast<std::int32_t>(draft.size());
    draft.tokens.push_back(node.token);
    draft.parents.push_back(nodes_[static_cast<std::size_t>(node.parent)].place);
    draft.confidence.push_back(node.confidence);
  }
}

// Brings the occurrences that reach a node into groups by how they go on, each a child.
void SuffixDrafter::expand(std::int32_t at) {
  const auto [begin, end, depth] = [&] {
    const Node& node = nodes_[static_cast<std::size_t>(at)];
    return std::tuple(node.begin, node.end, node.depth);
  }();
  path_.resize(before_ + static_cast<std::size_t>(depth));
  for (std::int32_t node = at; node > 0; node = nodes_[static_cast<std::size_t>(node)].parent) {
    const Node& on_path = nodes_[static_cast<std::size_t>(node)];
    path_[before_ + static_cast<std::size_t>(on_path.depth) - 1] = on_path.token;
  }
  double whole = 0;
  std::int32_t longest = 0;
  for (std::uint32_t i = begin; i < end; ++i) {
    Occurrence& occurrence = occurrences_[i];
    occurrence.next = next_of(occurrence.after, occurrence.own, path_, depth);
    if (occurrence.next < 0) continue;
    whole += weight(occurrence.length + depth);
    longest = std::max(longest, occurrence.length + depth);
  }
  steps_ += end - begin;
  // Groups in the order of their newest occurrence, which stands first: of equally likely nodes, the first wins.
  groups_.clear();
  for (std::uint32_t first = begin; first < end;) {
    const auto group = occurrences_.begin() + first;
    const auto rest = std::stable_partition(group, occurrences_.begin() + end,
                                            [next = group->next](const Occurrence& o) { return o.next == next; });
    const auto last = static_cast<std::uint32_t>(rest - occurrences_.begin());
    if (group->next >= 0) groups_.push_back({first, last});
    first = last;
  }
  whole += static_cast<double>(longest) * static_cast<double>(groups_.size());
  for (const auto& [first, last] : groups_) add_child(at, first, last, whole);
}

void SuffixDrafter::add_child(std::int32_t parent, std::uint32_t begin, std::uint32_t end, double whole) {
  const Node& above = nodes_[static_cast<std::size_t>(parent)];
  double part = 0;
  for (std::uint32_t i = begin; i < end; ++i) part += weight(occurrences_[i].length + above.depth);
  const float confidence = std::max(kLeastConfidence, static_cast<float>(part / whole));
  nodes_.push_back({.parent = parent,
                    .depth = above.depth + 1,
                    .token = occurrences_[begin].next,
                    .confidence = confidence,
                    .path = above.path * confidence,
                    .begin = begin,
                    .end = end});
}

}  // namespace agentkv
