#include "core/prefix_tree.h"

#include <algorithm>

namespace agentkv {

PrefixTree::Match PrefixTree::match(std::span<const std::int32_t> tokens) const {
  Match found{root_.get(), 0, 0};
  while (found.length == found.edge->tokens.size() && !tokens.empty()) {
    const auto next = found.edge->children.find(tokens.front());
    if (next == found.edge->children.end()) break;
    const auto& spelled = next->second->tokens;
    const auto differs = std::ranges::mismatch(spelled, tokens).in1;
    found = {next->second.get(), static_cast<std::size_t>(differs - spelled.begin()), found.total};
    found.total += static_cast<Pos>(found.length);
    tokens = tokens.subspan(found.length);
  }
  return found;
}

Pos PrefixTree::find(std::span<const std::int32_t> tokens) const { return match(tokens).total; }

// An edge is never older than those behind it, so that leaves come to be let go from the end of a history on.
void PrefixTree::touch(Edge& edge) noexcept {
  for (Edge* at = &edge; at != root_.get(); at = at->parent) {
    if (at->children.empty()) {
      auto leaf = leaves_.extract({at->used, at});
      leaf.value().first = ++clock_;
      leaves_.insert(std::move(leaf));
      at->used = clock_;
    } else {
      at->used = ++clock_;
    }
  }
}

// The first `length` tokens become an edge of their own, with the rest behind it.
void PrefixTree::split(Edge& edge, std::size_t length) {
  const Pos middle = edge.first + static_cast<Pos>(length);
  const auto at = edge.tokens.begin() + static_cast<std::ptrdiff_t>(length);
  auto upper = std::make_unique<Edge>();
  upper->parent = edge.parent;
  upper->first = edge.first;
  upper->used = edge.used;
  upper->tokens.assign(edge.tokens.begin(), at);
  std::vector<std::int32_t> rest(at, edge.tokens.end());
  RunList lower;
  for (const Run& run : edge.runs) {
    append_run(upper->runs, clip(run, 0, middle));
    append_run(lower, clip(run, middle, end_position(run)));
  }
  auto& behind = upper->children[rest.front()];
  auto& slot = edge.parent->children.at(edge.tokens.front());
  // Nothing throws from here on.
  edge.parent = upper.get();
  edge.first = middle;
  edge.tokens.swap(rest);
  edge.runs.swap(lower);
  behind = std::exchange(slot, std::move(upper));
}

// The cells of an edge below position `end` give way to those of a history that lack less.
void PrefixTree::replace_lacking(Edge& edge, std::span<const Run> runs, Pos end) {
  const auto lacks = [this](Cell cell) { return pool_.lacks()[static_cast<std::size_t>(cell)]; };
  RunList merged;
  std::vector<std::pair<Cell, Cell>> replaced;
  for (const Run& run : edge.runs) {
    for (Pos p = run.position; p < end_position(run); ++p) {
      Cell cell = run.cell + (p - run.position);
      if (p < end && lacks(cell) > 0) {
        const Run& other = runs[find_run(runs, p)];
        const Cell fresh = other.cell + (p - other.position);
        if (lacks(fresh) < lacks(cell)) {
          replaced.emplace_back(cell, fresh);
          cell = fresh;
        }
      }
      append_run(merged, {p, cell, 1});
    }
  }
  edge.runs.swap(merged);
  for (const auto& [old, fresh] : replaced) {
    pool_.keep(fresh, 1);
    pool_.drop(old);
  }
}

void PrefixTree::insert(std::span<const std::int32_t> tokens, std::span<const Run> runs) {
  const Match found = match(tokens);
  Edge* edge = found.edge;
  for (Edge* at = edge; at != root_.get(); at = at->parent) replace_lacking(*at, runs, found.total);
  const auto end = static_cast<Pos>(tokens.size());
  if (found.total == end) return touch(*edge);
  if (found.length < edge->tokens.size()) {
    split(*edge, found.length);
    edge = edge->parent;
  }
  RunList fresh;
  for (const Run& run : overlapping(runs, found.total, end)) append_run(fresh, clip(run, found.total, end));
  tokens = tokens.subspan(static_cast<std::size_t>(found.total));
  if (edge == root_.get() || !edge->children.empty()) {
    auto leaf = std::make_unique<Edge>();
    leaf->parent = edge;
    leaf->first = found.total;
    std::set<Leaf> added{{leaf->used, leaf.get()}};
    edge = edge->children.emplace(tokens.front(), std::move(leaf)).first->second.get();
    leaves_.merge(added);
  }
  grow(*edge, tokens, fresh);
  for (const Run& run : fresh) pool_.keep(run.cell, run.length);
  touch(*edge);
}

void PrefixTree::grow(Edge& leaf, std::span<const std::int32_t> tokens, const RunList& runs) {
  reserve_more(leaf.runs, runs.size());
  leaf.tokens.insert(leaf.tokens.end(), tokens.begin(), tokens.end());
  append_runs(leaf.runs, runs);
}

RunList PrefixTree::recall(std::span<const std::int32_t> tokens, Pos first) {
  RunList runs;
  const Match found = match(tokens);
  std::vector<const Edge*> path;
  for (const Edge* at = found.edge; at != root_.get(); at = at->parent) path.push_back(at);
  for (auto edge = path.rbegin(); edge != path.rend(); ++edge) {
    for (const Run& run : (*edge)->runs) append_run(runs, clip(run, first, found.total));
  }
  touch(*found.edge);
  return runs;
}

RunList PrefixTree::end_of(const Edge& edge, Pos n) {
  const Pos end = edge.first + static_cast<Pos>(edge.tokens.size());
  const Pos first = std::max(end - n, Pos{0});
  std::vector<const Edge*> path;
  for (const Edge* at = &edge; at && (path.empty() || path.back()->first > first); at = at->parent) path.push_back(at);
  RunList runs;
  for (auto at = path.rbegin(); at != path.rend(); ++at) {
    for (const Run& run : (*at)->runs) append_run(runs, clip(run, first, end));
  }
  return runs;
}

std::vector<RunList> PrefixTree::ends(Pos n) const {
  std::vector<RunList> out;
  std::vector<const Edge*> left{root_.get()};
  while (!left.empty()) {
    const Edge* edge = left.back();
    left.pop_back();
    if (edge != root_.get()) out.push_back(end_of(*edge, n));
    for (const auto& [_, child] : edge->children) left.push_back(child.get());
  }
  return out;
}

RunList PrefixTree::all_runs() const {
  RunList out;
  std::vector<const Edge*> left{root_.get()};
  while (!left.empty()) {
    const Edge* edge = left.back();
    left.pop_back();
    out.insert(out.end(), edge->runs.begin(), edge->runs.end());
    for (const auto& [_, child] : edge->children) left.push_back(child.get());
  }
  return out;
}

PrefixTree::MovedRuns PrefixTree::moved(const Moved& moved) const {
  MovedRuns out;
  std::vector<Edge*> left{root_.get()};
  while (!left.empty()) {
    Edge* edge = left.back();
    left.pop_back();
    out.emplace_back(edge, moved.runs(edge->runs));
    for (const auto& child : edge->children) left.push_back(child.second.get());
  }
  return out;
}

void PrefixTree::take_over(MovedRuns&& moved) noexcept {
  for (auto& [edge, runs] : moved) edge->runs.swap(runs);
}

void PrefixTree::evict(Cell n) noexcept {
  while (n > 0 && !leaves_.empty()) {
    Edge& leaf = *leaves_.begin()->second;
    n -= trim(leaf, n);
    if (leaf.tokens.empty()) remove(leaf);
  }
}

// Drops cells from the end until n are free; returns how many are.
Cell PrefixTree::trim(Edge& leaf, Cell n) noexcept {
  Cell freed = 0;
  while (freed < n && !leaf.runs.empty()) {
    Run& last = leaf.runs.back();
    Cell dropped = 0;
    while (freed < n && dropped < last.length) freed += pool_.drop(last.cell + last.length - ++dropped);
    leaf.tokens.resize(leaf.tokens.size() - static_cast<std::size_t>(dropped));
    last.length -= dropped;
    if (last.length == 0) leaf.runs.pop_back();
  }
  return freed;
}

void PrefixTree::remove(Edge& leaf) noexcept {
  Edge& parent = *leaf.parent;
  auto node = leaves_.extract({leaf.used, &leaf});
  const auto slot =
      std::ranges::find_if(parent.children, [&](const auto& child) { return child.second.get() == &leaf; });
  parent.children.erase(slot);
  if (&parent == root_.get() || !parent.children.empty()) return;
  node.value() = {parent.used, &parent};
  leaves_.insert(std::move(node));
}

void PrefixTree::clear() noexcept {
  // Long paths are taken apart leaf by leaf: destructors would go as deep as they are long.
  while (!leaves_.empty()) {
    Edge& leaf = *leaves_.begin()->second;
    trim(leaf, pool_.capacity() + 1);
    remove(leaf);
  }
}

}  // namespace agentkv
