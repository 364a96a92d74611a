// Drafts of a head with a cache are those of the same head without one, over entries made of the branch's own tokens
// and features, whatever became of the branches before.
#include <algorithm>
#include <memory>

#include "core/cells.h"
#include "core/errors.h"
#include "spec/branches.h"
#include "spec/eagle_drafter.h"
#include "spec/naive_draft.h"
#include "spec/reference_head.h"

namespace agentkv::testing {
namespace {

constexpr Token kVocab = 60;
constexpr HeadInfo kHead{.vocab_size = 25, .max_tokens = 256, .max_logits = 64, .feature_dim = 6, .hidden_dim = 4};

Row features_of(std::span<const Token> history) {
  std::uint64_t h = 3;
  for (const Token token : history) h = mixed(h * 31 + static_cast<std::uint64_t>(token) + 1);
  return hashed_row(h, static_cast<std::size_t>(kHead.feature_dim));
}

// Head token i is target token 2 i + 1.
std::vector<std::int32_t> offsets() {
  std::vector<std::int32_t> d2t;
  for (std::int32_t i = 0; i < kHead.vocab_size; ++i) d2t.push_back(i + 1);
  return d2t;
}

struct Rig {
  explicit Rig(TreeOptions options = {.width = 3, .top_k = 4, .min_reach = 0}, Cell capacity = 4096,
               SeqId max_sequences = 32, HeadInfo info = kHead)
      : options(options),
        cells(std::make_shared<Cells>(capacity, max_sequences)),
        head(std::make_shared<ReferenceHead>(cells, info)),
        drafter(head, cells, offsets(), kVocab, options) {
    for (const std::int32_t offset : offsets()) target_of.push_back(static_cast<Token>(target_of.size()) + offset);
  }

  Draft expected(const std::vector<Entry>& entries, int max_nodes, int max_depth) const {
    const Expand expand = [&](const Tokens& path) {
      std::vector<Entry> all = entries;
      auto out = head->model(all);
      for (const Token token : path) {
        all.push_back({token, out.second});
        out = head->model(all);
      }
      return out.first;
    };
    return naive_draft(expand, options, max_nodes, max_depth, target_of);
  }

  static bool same(const Draft& a, const Draft& b) {
    return a.tokens == b.tokens && a.parents == b.parents && a.confidence == b.confidence;
  }

  // Are these the entries of a branch's last positions? `stand_ins` counts those made with the features of another
  // position, or of a token that was rolled back.
  bool holds(const std::vector<Entry>& entries, const Tokens& history, int& stand_ins) const {
    if (entries.empty() || entries.size() >= history.size()) return false;
    const std::size_t offset = history.size() - 1 - entries.size();
    stand_ins = 0;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const std::size_t p = offset + i;
      if (entries[i].token != history[p + 1]) return false;
      if (entries[i].hidden == head->fused(features_of(std::span(history).first(p + 1)))) continue;
      if (!head->given_out.contains(hash_of(entries[i].hidden))) return false;
      ++stand_ins;
    }
    return true;
  }

  // The draft is what the head makes of one of the cache's sequences, whose entries are the branch's.
  void check_draft_of(const DraftRequest& request, std::size_t least_entries = 1, int most_stand_ins = 1 << 20) const {
    const Tokens history(request.history.begin(), request.history.end());
    check_draft(request.draft, kVocab);
    for (SeqId seq = 0; seq < cells->max_sequences(); ++seq) {
      const auto entries = head->entries(seq);
      int stand_ins = 0;
      if (!holds(entries, history, stand_ins) || entries.size() < least_entries || stand_ins > most_stand_ins) continue;
      if (!same(request.draft, expected(entries, request.max_nodes, request.max_depth))) continue;
      checked_entries += entries.size();
      checked_stand_ins += static_cast<std::size_t>(stand_ins);
      return;
    }
    CHECK(!"no sequence explains the draft");
  }

  const TreeOptions options;
  const std::shared_ptr<Cells> cells;
  const std::shared_ptr<ReferenceHead> head;
  EagleDrafter drafter;
  Tokens target_of;
  mutable std::size_t checked_entries = 0;
  mutable std::size_t checked_stand_ins = 0;
};

void test_one_forward_per_level_for_all_branches() {
  Rig rig;
  Branches branches(rig.drafter, 1, kVocab, features_of);
  for (int i = 0; i < 8; ++i) branches.create(5 + i);
  CHECK_EQ(rig.head->calls, 0);
  for (int round = 0; round < 40; ++round) {
    const int depth = 1 + round % 5;
    std::vector<DraftRequest> requests;
    for (const auto& [id, branch] : branches.all) requests.push_back(branches.request(id, 12, depth));
    const auto before = rig.drafter.stats();
    const int fuses = rig.head->fuses;
    rig.drafter.propose(requests);
    CHECK_EQ(rig.drafter.stats().levels - before.levels, static_cast<std::uint64_t>(depth));
    CHECK_EQ(rig.drafter.stats().forwards - before.forwards, static_cast<std::uint64_t>(depth));
    CHECK_EQ(rig.head->fuses, fuses + 1);
    Cell entries = 0;
    for (const DraftRequest& request : requests) {
      rig.check_draft_of(request, request.history.size() - 1, 0);
      entries += static_cast<Cell>(request.history.size()) - 1;
      branches.go_on(request.branch, branches.accepted(request.draft, branches.below(depth + 1)));
    }
    CHECK_EQ(rig.cells->used(), entries);  // no node is left
  }
}

void test_no_draft_is_deeper_than_its_drafter() {
  for (const std::int32_t depth : {1, 2, 4}) {
    Rig rig({.width = 3, .top_k = 4, .min_reach = 0, .depth = depth});
    Branches branches(rig.drafter, 9, kVocab, features_of);
    const BranchId id = branches.create(20);
    for (int asked = 1; asked < 7; ++asked) {
      std::vector<DraftRequest> requests{branches.request(id, 40, asked)};
      rig.drafter.propose(requests);
      CHECK_EQ(requests[0].levels, std::min(asked, depth));
      rig.check_draft_of(requests[0], 19, 0);
      branches.go_on(id, {branches.any_token()});
    }
  }
}

void test_long_prompts_are_run_as_they_come() {
  Rig rig;
  Branches branches(rig.drafter, 2, kVocab, features_of);
  for (const int chunk : {1, 7, 128, 200, 512}) {
    const BranchId id = branches.create(700, chunk);
    const int calls = rig.head->calls;
    std::vector<DraftRequest> requests{branches.request(id, 10, 3)};
    rig.drafter.propose(requests);
    CHECK_EQ(rig.head->calls, calls + 3);
    rig.check_draft_of(requests[0], 699, 0);
  }
  CHECK(rig.drafter.stats().prefills > 0);
}

void test_a_fork_at_the_tip_is_exact() {
  Rig rig;
  Branches branches(rig.drafter, 3, kVocab, features_of);
  const BranchId trunk = branches.create(40);
  std::vector<DraftRequest> first{branches.request(trunk, 10, 3)};
  rig.drafter.propose(first);
  const BranchId child = branches.fork(trunk);
  branches.all.at(child).log.back() = (branches.all.at(trunk).log.back() + 1) % kVocab;
  std::vector<DraftRequest> requests{branches.request(trunk, 10, 3), branches.request(child, 10, 3)};
  rig.drafter.propose(requests);
  for (const DraftRequest& request : requests) rig.check_draft_of(request, 39, 0);
  // The pending token is taken back and another one comes: no one says so, and the entry is made again.
  branches.all.at(trunk).log.back() = (branches.all.at(trunk).log.back() + 2) % kVocab;
  branches.go_on(trunk, {5, 6});
  std::vector<DraftRequest> again{branches.request(trunk, 10, 3)};
  rig.drafter.propose(again);
  rig.check_draft_of(again[0], 41, 0);
}

void test_a_gap_of_one_stands_in() {
  Rig rig;
  Branches branches(rig.drafter, 4, kVocab, features_of);
  const BranchId id = branches.create(400);
  std::vector<DraftRequest> requests{branches.request(id, 10, 3)};
  rig.drafter.propose(requests);
  // Back to the middle: the features of position 99 went with the token that was at 100.
  auto& branch = branches.all.at(id);
  branch.log.resize(100);
  branch.n_cached = 100;
  rig.drafter.truncated(id, 100);
  branches.go_on(id, {1, 2, 3});
  requests = {branches.request(id, 10, 3)};
  rig.drafter.propose(requests);
  rig.check_draft_of(requests[0], 102, 1);
  // Back again, without anything new: there are no features to go by.
  branch.log.resize(50);
  branch.n_cached = 49;
  rig.drafter.truncated(id, 49);
  requests = {branches.request(id, 10, 3)};
  rig.drafter.propose(requests);
  CHECK(requests[0].draft.empty());
  branches.go_on(id, {4});
  requests = {branches.request(id, 10, 3)};
  rig.drafter.propose(requests);
  rig.check_draft_of(requests[0], 50, 1);
}

void test_attached_late() {
  Rig rig;
  Branches branches(rig.drafter, 5, kVocab, features_of);
  branches.all[77] = {Tokens(300, 9), 298};  // nobody told the drafter of 298 tokens
  std::vector<DraftRequest> requests{branches.request(77, 10, 3)};
  rig.drafter.propose(requests);
  CHECK(requests[0].draft.empty());
  branches.go_on(77, {1, 2, 3, 4});
  requests = {branches.request(77, 10, 3)};
  rig.drafter.propose(requests);
  rig.check_draft_of(requests[0], 5, 0);
  CHECK_EQ(rig.cells->used(), 5);
}

void test_random_lives() {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const bool narrow = seed % 2 == 1;
    HeadInfo info = kHead;
    if (narrow) info.max_tokens = 7, info.max_logits = 3;
    Rig rig({.width = 1 + static_cast<int>(seed) % 4, .top_k = 3, .min_reach = 0}, 4096, 32, info);
    Branches branches(rig.drafter, seed, kVocab, features_of);
    branches.create(10);
    int drafts = 0;
    for (int step = 0; step < 600; ++step) {
      if (branches.below(3) == 0) {
        branches.disturb(6, 100);
        continue;
      }
      std::vector<DraftRequest> requests;
      for (const auto& [id, branch] : branches.all) {
        if (branches.below(4) > 0) {
          requests.push_back(branches.request(id, 1 + branches.below(20), 1 + branches.below(5)));
        }
      }
      rig.drafter.propose(requests);
      for (const DraftRequest& request : requests) {
        // Without a draft: the branch was just rolled back, or holds one token.
        if (!request.draft.empty()) rig.check_draft_of(request), ++drafts;
        if (branches.below(8) > 0) branches.go_on(request.branch, branches.accepted(request.draft, branches.below(5)));
      }
    }
    CHECK(drafts > 500);
    CHECK(rig.checked_stand_ins * 20 < rig.checked_entries);
    while (!branches.all.empty()) branches.close(branches.any());
    CHECK_EQ(rig.cells->used(), 0);
    CHECK_EQ(rig.cells->live_sequences(), 0);
  }
}

void test_ten_thousand_rounds_leak_nothing() {
  Rig rig({.width = 4, .top_k = 4, .min_reach = 0}, 512, 4);
  Branches branches(rig.drafter, 6, kVocab, features_of);
  const BranchId id = branches.create(20);
  for (int round = 0; round < 10000; ++round) {
    std::vector<DraftRequest> requests{branches.request(id, 8, 4)};
    rig.drafter.propose(requests);
    const auto& branch = branches.all.at(id);
    CHECK(rig.cells->used() < static_cast<Cell>(branch.log.size()));
    branches.go_on(id, branches.accepted(requests[0].draft, 4));
    if (branch.log.size() > 200) branches.rollback(id, 20);
  }
  branches.close(id);
  CHECK_EQ(rig.cells->used(), 0);
}

void test_a_forward_that_fails() {
  Rig rig;
  Branches branches(rig.drafter, 7, kVocab, features_of);
  for (int i = 0; i < 3; ++i) branches.create(12);
  for (int round = 0; round < 60; ++round) {
    std::vector<DraftRequest> requests;
    for (const auto& [id, branch] : branches.all) requests.push_back(branches.request(id, 10, 4));
    const int failing = round % 5;
    const int before = rig.head->calls;
    const Cell used = rig.cells->used();
    rig.head->fault = [&] {
      if (rig.head->calls - before == failing + 1 && failing < 4) throw ForwardFailed("on purpose");
    };
    if (failing < 4) {
      CHECK_THROWS(rig.drafter.propose(requests), ForwardFailed, "on purpose");
      if (failing == 0) CHECK(rig.cells->used() <= used);
    }
    rig.head->fault = nullptr;
    for (DraftRequest& request : requests) request.draft = {};
    rig.drafter.propose(requests);
    for (const DraftRequest& request : requests) {
      rig.check_draft_of(request, request.history.size() - 1, 0);
      branches.go_on(request.branch, branches.accepted(request.draft, branches.below(4)));
    }
  }
  rig.head->fault = [] { throw ForwardFailed("on purpose"); };
  const BranchId late = branches.create(400);  // observed without a word
  rig.head->fault = nullptr;
  std::vector<DraftRequest> requests{branches.request(late, 10, 3)};
  rig.drafter.propose(requests);
  rig.check_draft_of(requests[0]);
}

void test_no_room_is_no_error() {
  Rig rig({.width = 2, .top_k = 2, .min_reach = 0}, 160, 2);
  Branches branches(rig.drafter, 8, kVocab, features_of);
  const BranchId a = branches.create(140), b = branches.create(40), c = branches.create(5);
  std::vector<DraftRequest> requests{branches.request(a, 8, 3), branches.request(b, 8, 3), branches.request(c, 8, 3)};
  rig.drafter.propose(requests);
  rig.check_draft_of(requests[0], 139, 0);
  CHECK(requests[1].draft.empty());  // 139 cells for the first one, and no 39 more
  CHECK(requests[2].draft.empty());  // no third sequence
  // A branch that outgrows the cache begins anew, with what it can still hold.
  for (int i = 0; i < 200; ++i) branches.go_on(a, {branches.any_token()});
  std::vector<DraftRequest> again{branches.request(a, 8, 3)};
  rig.drafter.propose(again);
  rig.check_draft_of(again[0]);
}

void test_bad_arguments() {
  Rig rig;
  const auto make = [&](std::vector<std::int32_t> d2t, std::int32_t target = kVocab, TreeOptions options = {}) {
    EagleDrafter(rig.head, rig.cells, d2t, target, options);
  };
  CHECK_THROWS(EagleDrafter(nullptr, rig.cells, {}, 25), InvalidDrafter, "head");
  CHECK_THROWS(EagleDrafter(rig.head, nullptr, {}, 25), InvalidDrafter, "tree cache");
  CHECK_THROWS(make({}), InvalidDrafter, "25 tokens", "60");
  CHECK_THROWS(make({1, 2}), InvalidDrafter, "2 entries", "25 tokens");
  CHECK_THROWS(make(offsets(), 40), InvalidDrafter, "token 20", "token 41", "has 40");
  auto twice = offsets();
  twice[3] = -2;
  CHECK_THROWS(make(twice), InvalidDrafter, "tokens 0 and 3", "token 1");
  CHECK_THROWS(make(offsets(), kVocab, {.width = 1, .top_k = 0, .min_reach = 0}), InvalidDrafter, "top_k 0");
  CHECK_THROWS(make(offsets(), kVocab, {.min_reach = 0, .depth = -1}), InvalidDrafter, "depth is -1");
  EagleDrafter(rig.head, rig.cells, {}, 25);
}

}  // namespace
}  // namespace agentkv::testing

int main() {
  using namespace agentkv::testing;
  test_one_forward_per_level_for_all_branches();
  test_no_draft_is_deeper_than_its_drafter();
  test_long_prompts_are_run_as_they_come();
  test_a_fork_at_the_tip_is_exact();
  test_a_gap_of_one_stands_in();
  test_attached_late();
  test_random_lives();
  test_ten_thousand_rounds_leak_nothing();
  test_a_forward_that_fails();
  test_no_room_is_no_error();
  test_bad_arguments();
}
