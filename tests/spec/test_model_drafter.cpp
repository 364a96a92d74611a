// Drafts of a model with a cache are those of the same model without one, whatever became of the branches before.
#include <memory>

#include "core/cells.h"
#include "core/errors.h"
#include "spec/branches.h"
#include "spec/model_drafter.h"
#include "spec/naive_draft.h"

namespace agentkv::testing {
namespace {

constexpr Token kVocab = 40;

struct Rig {
  explicit Rig(TreeOptions options = {.width = 3, .top_k = 4, .min_reach = 0}, Cell capacity = 4096,
               SeqId max_sequences = 32, RunnerInfo info = {.vocab_size = kVocab, .max_tokens = 256, .max_logits = 64})
      : options(options),
        cells(std::make_shared<Cells>(capacity, max_sequences)),
        program(std::make_shared<ReferenceRunner>(cells, info)),
        drafter(program, cells, options) {}

  Draft expected(const Tokens& history, int max_nodes, int max_depth) const {
    const Expand expand = [&](const Tokens& path) {
      Tokens all = history;
      all.insert(all.end(), path.begin(), path.end());
      std::vector<float> row(kVocab);
      program->model(all, row);
      if (options.vocab_size > 0) row.resize(static_cast<std::size_t>(options.vocab_size));
      return row;
    };
    return naive_draft(expand, options, max_nodes, max_depth);
  }

  void check_drafts(std::span<DraftRequest> requests) const {
    for (const DraftRequest& request : requests) {
      const Tokens history(request.history.begin(), request.history.end());
      check_same(request.draft, expected(history, request.max_nodes, request.max_depth));
      check_draft(request.draft, kVocab);
    }
  }

  const TreeOptions options;
  const std::shared_ptr<Cells> cells;
  const std::shared_ptr<ReferenceRunner> program;
  ModelDrafter drafter;
};

void test_one_forward_per_level_for_all_branches() {
  Rig rig;
  Branches branches(rig.drafter, 1, kVocab);
  for (int i = 0; i < 8; ++i) branches.create(5 + i);
  for (int round = 0; round < 20; ++round) {
    const int depth = 1 + round % 5;
    std::vector<DraftRequest> requests;
    for (const auto& [id, branch] : branches.all) requests.push_back(branches.request(id, 12, depth));
    const auto before = rig.drafter.stats();
    rig.drafter.propose(requests);
    rig.check_drafts(requests);
    CHECK_EQ(rig.drafter.stats().levels - before.levels, static_cast<std::uint64_t>(depth));
    CHECK_EQ(rig.drafter.stats().forwards - before.forwards, static_cast<std::uint64_t>(depth));
    for (const DraftRequest& request : requests) {
      branches.go_on(request.branch, branches.accepted(request.draft, branches.below(depth + 1)));
    }
  }
}

// The first level of a round runs what the target accepted of the last one only where the draft did not run it.
void test_nothing_is_computed_twice() {
  Rig rig({.width = 2, .top_k = 2, .min_reach = 0});
  Branches branches(rig.drafter, 2, kVocab);
  const BranchId id = branches.create(30);
  std::size_t rows = rig.program->rows.empty() ? 0 : rig.program->rows.back();
  CHECK_EQ(rows, 29u);  // the prompt, as the target ran it
  for (int round = 0; round < 50; ++round) {
    std::vector<DraftRequest> requests{branches.request(id, 30, 4)};
    const auto calls = rig.program->rows.size();
    rig.drafter.propose(requests);
    rig.check_drafts(requests);
    // The tokens that the last round's nodes could not hold: one that no level below ran, and the target's own.
    CHECK(rig.program->rows[calls] <= 2);
    for (std::size_t level = 1; level < 4; ++level) CHECK_EQ(rig.program->rows[calls + level], 2u);
    Tokens best;  // a path of nodes that ran: the best child each time
    for (int parent = -1; best.size() < static_cast<std::size_t>(round % 4);) {
      const auto child = std::find(requests[0].draft.parents.begin(), requests[0].draft.parents.end(), parent);
      if (child == requests[0].draft.parents.end()) break;
      parent = static_cast<int>(child - requests[0].draft.parents.begin());
      best.push_back(requests[0].draft.tokens[static_cast<std::size_t>(parent)]);
    }
    best.push_back(branches.any_token());
    branches.go_on(id, best);
  }
}

void test_random_lives() {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    // In odd runs a level does not fit one forward.
    const bool narrow = seed % 2 == 1;
    Rig rig({.width = 1 + static_cast<int>(seed) % 4, .top_k = 3, .min_reach = 0}, 4096, 32,
            {.vocab_size = kVocab, .max_tokens = narrow ? 7 : 256, .max_logits = narrow ? 3 : 64});
    Branches branches(rig.drafter, seed, kVocab);
    branches.create(10);
    for (int step = 0; step < 1500; ++step) {
      if (branches.below(3) == 0) {
        branches.disturb(10, 200);
        continue;
      }
      std::vector<DraftRequest> requests;
      for (const auto& [id, branch] : branches.all) {
        if (branches.below(4) > 0)
          requests.push_back(branches.request(id, 1 + branches.below(20), 1 + branches.below(6)));
      }
      rig.drafter.propose(requests);
      rig.check_drafts(requests);
      for (const DraftRequest& request : requests) {
        if (branches.below(8) > 0) branches.go_on(request.branch, branches.accepted(request.draft, branches.below(5)));
      }
    }
    while (!branches.all.empty()) branches.close(branches.any());
    CHECK_EQ(rig.cells->used(), 0);
    CHECK_EQ(rig.cells->live_sequences(), 0);
  }
}

void test_ten_thousand_rounds_leak_nothing() {
  Rig rig({.width = 4, .top_k = 4, .min_reach = 0}, 512, 4);
  Branches branches(rig.drafter, 3, kVocab);
  const BranchId id = branches.create(20);
  for (int round = 0; round < 10000; ++round) {
    std::vector<DraftRequest> requests{branches.request(id, 8, 4)};
    rig.drafter.propose(requests);
    CHECK(!requests[0].draft.empty());
    const auto& branch = branches.all.at(id);
    CHECK(rig.cells->used() <= static_cast<Cell>(branch.log.size()) + 4 * 3);
    branches.go_on(id, branches.accepted(requests[0].draft, 4));
    if (branch.log.size() > 200) branches.rollback(id, 20);
  }
  branches.close(id);
  CHECK_EQ(rig.cells->used(), 0);
}

void test_a_forward_that_fails() {
  Rig rig;
  Branches branches(rig.drafter, 4, kVocab);
  for (int i = 0; i < 3; ++i) branches.create(12);
  for (int round = 0; round < 60; ++round) {
    std::vector<DraftRequest> requests;
    for (const auto& [id, branch] : branches.all) requests.push_back(branches.request(id, 10, 4));
    const int failing = round % 5;  // which forward of the round; none in every fifth
    const Cell used = rig.cells->used();
    const int before = rig.program->calls;
    rig.program->fault = [&](auto) {
      if (rig.program->calls - before == failing + 1 && failing < 4) throw ForwardFailed("on purpose");
    };
    if (failing < 4) {
      CHECK_THROWS(rig.drafter.propose(requests), ForwardFailed, "on purpose");
      if (failing == 0) CHECK(rig.cells->used() <= used);
      std::size_t tokens = 0;
      for (const auto& [id, branch] : branches.all) tokens += branch.log.size();
      CHECK(rig.cells->used() <= static_cast<Cell>(tokens));  // no nodes are left
    }
    rig.program->fault = nullptr;
    for (DraftRequest& request : requests) request.draft = {};
    rig.drafter.propose(requests);
    rig.check_drafts(requests);
    for (const DraftRequest& request : requests) {
      branches.go_on(request.branch, branches.accepted(request.draft, branches.below(4)));
    }
  }
  rig.program->fault = [](auto) { throw ForwardFailed("on purpose"); };
  const BranchId late = branches.create(100);  // observed without a word
  rig.program->fault = nullptr;
  std::vector<DraftRequest> requests{branches.request(late, 10, 3)};
  rig.drafter.propose(requests);
  rig.check_drafts(requests);
}

void test_no_room_is_no_error() {
  Rig rig({.width = 2, .top_k = 2, .min_reach = 0}, 48, 2);
  Branches branches(rig.drafter, 5, kVocab);
  const BranchId a = branches.create(30), b = branches.create(30), c = branches.create(5);
  std::vector<DraftRequest> requests{branches.request(a, 8, 3), branches.request(b, 8, 3), branches.request(c, 8, 3)};
  rig.drafter.propose(requests);
  rig.check_drafts(std::span(requests).first(1));
  CHECK(requests[1].draft.empty());  // 30 cells for the first one, and no 30 more
  CHECK(requests[2].draft.empty());  // no third sequence
  branches.close(a);
  for (DraftRequest& request : requests) request.draft = {};
  rig.drafter.propose(std::span(requests).subspan(1));
  rig.check_drafts(std::span(requests).subspan(1));
  // Where nodes find no room, levels are left out.
  branches.close(b);
  branches.close(c);
  const BranchId d = branches.create(41);
  std::vector<DraftRequest> tight{branches.request(d, 8, 9)};
  rig.drafter.propose(tight);
  CHECK(!tight[0].draft.empty());
}

void test_levels_end_where_nothing_is_likely() {
  Rig rig({.width = 4, .top_k = 4, .min_reach = 0.05f});
  Branches branches(rig.drafter, 6, kVocab);
  for (int i = 0; i < 5; ++i) branches.create(10);
  std::vector<DraftRequest> requests;
  for (const auto& [id, branch] : branches.all) requests.push_back(branches.request(id, 30, 12));
  rig.drafter.propose(requests);
  rig.check_drafts(requests);
  CHECK(rig.drafter.stats().levels < 6);
}

// Nodes of a branch that is not drafted for any more make room for one that is.
void test_idle_nodes_give_way() {
  Rig rig({.width = 4, .top_k = 4, .min_reach = 0}, 64, 4);
  Branches branches(rig.drafter, 7, kVocab);
  const BranchId a = branches.create(20);
  std::vector<DraftRequest> first{branches.request(a, 8, 6)};
  rig.drafter.propose(first);
  CHECK_EQ(rig.cells->used(), 40);
  const BranchId b = branches.create(15), c = branches.create(16);
  std::vector<DraftRequest> both{branches.request(b, 8, 1), branches.request(c, 8, 1)};
  rig.drafter.propose(both);
  rig.check_drafts(both);
  branches.go_on(a, branches.accepted(first[0].draft, 3));
  std::vector<DraftRequest> again{branches.request(a, 8, 2)};
  rig.drafter.propose(again);
  rig.check_drafts(again);
}

// Ids from the vocabulary's size on are padding of this program, or tokens of the target's alone.
void test_padding_is_neither_proposed_nor_fed() {
  constexpr Token kTokens = 9;
  Rig rig({.width = 3, .top_k = 4, .min_reach = 0, .vocab_size = kTokens});
  Branches branches(rig.drafter, 8, kTokens);
  const BranchId known = branches.create(30), strange = branches.create(30), late = branches.create(2);
  branches.go_on(strange, {kTokens, 1});
  branches.go_on(late, Tokens(20, kVocab + 5));  // which the program does not even have
  std::vector<DraftRequest> requests;
  for (const BranchId id : {known, strange, late}) requests.push_back(branches.request(id, 20, 4));
  rig.drafter.propose(requests);
  rig.check_drafts(std::span(requests).first(1));
  CHECK(!requests[0].draft.empty());
  for (const Token token : requests[0].draft.tokens) CHECK(token < kTokens);
  CHECK(requests[1].draft.empty() && requests[2].draft.empty());
}

void test_bad_arguments() {
  Rig rig;
  CHECK_THROWS(ModelDrafter(nullptr, rig.cells), InvalidDrafter, "program");
  CHECK_THROWS(ModelDrafter(rig.program, nullptr), InvalidDrafter, "tree cache");
  CHECK_THROWS(ModelDrafter(rig.program, rig.cells, {.width = 0, .top_k = 2, .min_reach = 0}), InvalidDrafter,
               "width is 0", "top_k 2");
}

}  // namespace
}  // namespace agentkv::testing

int main() {
  using namespace agentkv::testing;
  test_one_forward_per_level_for_all_branches();
  test_nothing_is_computed_twice();
  test_random_lives();
  test_ten_thousand_rounds_leak_nothing();
  test_a_forward_that_fails();
  test_no_room_is_no_error();
  test_levels_end_where_nothing_is_likely();
  test_idle_nodes_give_way();
  test_padding_is_neither_proposed_nor_fed();
  test_bad_arguments();
}
