// Stands in for an engine: branches that grow, fork, roll back and close, and a drafter that is told of it.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "engine/drafter.h"
#include "engine/reference_runner.h"

namespace agentkv::testing {

// The features that the target gives out for the last token of `history`.
using FeaturesOf = std::function<std::vector<float>(std::span<const Token> history)>;

class Branches {
 public:
  struct Branch {
    Tokens log;
    Pos n_cached = 0;  // the target ran log[0, n_cached)
  };

  Branches(Drafter& drafter, std::uint64_t seed, Token vocab, FeaturesOf features = nullptr)
      : drafter_(drafter), features_(std::move(features)), random(seed), vocab_(vocab) {}

  int below(int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); }
  Token any_token() { return below(vocab_); }

  // A branch whose prompt the target ran in chunks, all but the last token.
  BranchId create(int prompt, int chunk = 64) {
    const BranchId id = next_++;
    Branch& branch = all[id];
    for (int i = 0; i < prompt; ++i) branch.log.push_back(any_token());
    while (branch.n_cached + 1 < static_cast<Pos>(branch.log.size())) {
      run(id, std::min(chunk, static_cast<int>(branch.log.size()) - branch.n_cached - 1));
    }
    return id;
  }

  // The target runs the next n tokens of the branch.
  void run(BranchId id, int n) {
    Branch& branch = all.at(id);
    const auto tokens = std::span<const Token>(branch.log).subspan(static_cast<std::size_t>(branch.n_cached));
    std::vector<float> features;
    for (int i = 0; i < n && features_; ++i) {
      const auto row = features_(std::span(branch.log).first(static_cast<std::size_t>(branch.n_cached + i + 1)));
      features.insert(features.end(), row.begin(), row.end());
    }
    drafter_.observe(id, branch.n_cached, tokens.first(static_cast<std::size_t>(n)), features);
    branch.n_cached += n;
  }

  // The target goes on by `tokens`, of which the last one stays pending.
  void go_on(BranchId id, const Tokens& tokens) {
    Branch& branch = all.at(id);
    branch.log.insert(branch.log.end(), tokens.begin(), tokens.end());
    run(id, static_cast<int>(branch.log.size()) - branch.n_cached - 1);
  }

  BranchId fork(BranchId src) {
    const BranchId id = next_++;
    all[id] = all.at(src);
    if (all[id].n_cached > 0) drafter_.shared(src, id, all[id].n_cached);
    return id;
  }

  // Keeps `length` tokens, of which the last one is to be run again, unless another one comes after it.
  void rollback(BranchId id, Pos length) {
    Branch& branch = all.at(id);
    branch.log.resize(static_cast<std::size_t>(length));
    if (length < branch.n_cached) truncate(id, length);
    if (below(2)) {
      branch.log.push_back(any_token());
    } else if (branch.n_cached == length) {
      truncate(id, length - 1);
    }
  }

  void close(BranchId id) {
    drafter_.closed(id);
    all.erase(id);
  }

  BranchId any() {
    auto at = all.begin();
    std::advance(at, below(static_cast<int>(all.size())));
    return at->first;
  }

  DraftRequest request(BranchId id, int max_nodes, int max_depth) {
    return {.branch = id, .history = all.at(id).log, .max_nodes = max_nodes, .max_depth = max_depth};
  }

  // What the target accepts of a draft: a chain of up to `most` of its nodes, chosen at random, and a token of its own.
  Tokens accepted(const Draft& draft, int most) {
    Tokens tokens;
    for (int parent = -1; static_cast<int>(tokens.size()) < most;) {
      std::vector<int> children;
      for (std::size_t i = 0; i < draft.size(); ++i) {
        if (draft.parents[i] == parent) children.push_back(static_cast<int>(i));
      }
      if (children.empty()) break;
      parent = children[static_cast<std::size_t>(below(static_cast<int>(children.size())))];
      tokens.push_back(draft.tokens[static_cast<std::size_t>(parent)]);
    }
    tokens.push_back(any_token());
    return tokens;
  }

  // Something other than drafting happens.
  void disturb(int most_branches, int longest) {
    const BranchId id = any();
    const auto length = static_cast<Pos>(all.at(id).log.size());
    switch (below(6)) {
      case 0:
        if (static_cast<int>(all.size()) < most_branches) fork(id);
        break;
      case 1:
        if (length > 2) rollback(id, 1 + below(length - 1));
        break;
      case 2:
        if (length > 1) rollback(id, length - 1);
        break;
      case 3:
        if (all.size() > 1) close(id);
        break;
      case 4: {
        Tokens tokens;
        for (int i = 1 + below(40); i > 0; --i) tokens.push_back(any_token());
        go_on(id, tokens);
        break;
      }
      default:
        if (static_cast<int>(all.size()) < most_branches) create(1 + below(60), 1 + below(50));
    }
    for (auto& [other, branch] : all) {
      if (static_cast<int>(branch.log.size()) > longest) rollback(other, 1 + below(longest / 2));
    }
  }

  std::map<BranchId, Branch> all;

 private:
  void truncate(BranchId id, Pos length) {
    all.at(id).n_cached = length;
    drafter_.truncated(id, length);
  }

  Drafter& drafter_;
  const FeaturesOf features_;

 public:
  std::mt19937_64 random;

 private:
  const Token vocab_;
  BranchId next_ = 0;
};

}  // namespace agentkv::testing
