// A drafter that proposes by a function and checks that it hears of everything.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cpp/check.h"
#include "engine/drafter.h"
#include "engine/reference_runner.h"

namespace agentkv::testing {

using Propose = std::function<Draft(const DraftRequest&)>;

// Drafts by a function, and keeps its own account of what the target ran of every branch.
class TestDrafter final : public Drafter {
 public:
  explicit TestDrafter(Propose propose, bool adapts = false) : propose_(std::move(propose)) { adaptive = adapts; }

  void propose(std::span<DraftRequest> requests) override {
    ++rounds;
    for (DraftRequest& request : requests) {
      ++asked;
      deepest = std::max(deepest, request.max_depth);
      const Tokens& known = fed[request.branch];
      CHECK_EQ(known.size() + 1, request.history.size());
      CHECK(std::equal(known.begin(), known.end(), request.history.begin()));
      request.draft = propose_(request);
    }
  }
  void observe(BranchId branch, Pos first, std::span<const Token> tokens, std::span<const float> features) override {
    CHECK(features.empty());
    CHECK_EQ(static_cast<Pos>(fed[branch].size()), first);
    fed[branch].insert(fed[branch].end(), tokens.begin(), tokens.end());
  }
  void shared(BranchId src, BranchId dst, Pos length) override {
    CHECK(fed[dst].empty());
    CHECK(static_cast<Pos>(fed[src].size()) >= length);
    fed[dst].assign(fed[src].begin(), fed[src].begin() + length);
  }
  void truncated(BranchId branch, Pos length) override {
    CHECK(static_cast<Pos>(fed[branch].size()) > length);
    fed[branch].resize(static_cast<std::size_t>(length));
  }
  void closed(BranchId branch) override { fed.erase(branch); }

  std::map<BranchId, Tokens> fed;
  int rounds = 0;
  int asked = 0;
  std::int32_t deepest = 0;

 private:
  Propose propose_;
};

// Drafters whose guesses are verified together.
struct TestMixture final : Drafter {
  explicit TestMixture(std::vector<std::shared_ptr<Drafter>> of) : of(std::move(of)) {}
  void propose(std::span<DraftRequest>) override { CHECK(false); }
  std::vector<std::shared_ptr<Drafter>> parts() const override { return of; }
  const std::vector<std::shared_ptr<Drafter>> of;
};

}  // namespace agentkv::testing
