// Generations that are taken back to what was read of them: the branch is as if they had made no more.
#include <algorithm>
#include <functional>
#include <random>

#include "engine/rig.h"
#include "engine/test_drafter.h"

namespace agentkv::testing {
namespace {

// What a branch is: two that made the same agree in all of it.
struct Snapshot {
  Tokens log;
  Pos n_cached;
  bool row;
  Cell cells;
  std::uint64_t stream;
  bool operator==(const Snapshot&) const = default;
};

Snapshot snapshot(Rig& rig, BranchId id) {
  const Branch& branch = rig.engine.branch(id);
  return {branch.log, branch.n_cached, branch.next_logits != nullptr, rig.cells->used(), branch.rng_stream};
}

GenerateOptions emitting(int max_tokens, std::shared_ptr<Drafter> drafter = nullptr) {
  return {.max_tokens = max_tokens,
          .sampling = {.temperature = 0.8f, .frequency_penalty = 0.3f},
          .ignore_eos = true,
          .emit = true,
          .drafter = std::move(drafter)};
}

// A prompt whose row of logits is known, or one after which a sampled token is pending.
BranchId begin(Rig& rig, bool known_row) {
  const BranchId branch = rig.prompt(prompt_tokens(6));
  if (!known_row) rig.generate(branch, 1);
  return branch;
}

// After so many steps of a generation, running or over, all but its first tokens are taken back.
void check_taken_back(bool known_row, int steps, Pos kept, const Propose& propose) {
  Rig rig, exact;
  const BranchId branch = begin(rig, known_row), twin = begin(exact, known_row);
  const Snapshot before = snapshot(rig, branch);
  std::shared_ptr<TestDrafter> drafter;
  if (propose) {
    drafter = std::make_shared<TestDrafter>(propose);
    rig.engine.attach(drafter);
    drafter->fed[branch] = Tokens(before.log.begin(), before.log.begin() + before.n_cached);
  }
  const JobId job = rig.engine.generate(branch, emitting(12, drafter));
  for (int step = 0; step < steps; ++step) rig.step();
  const auto made = static_cast<Pos>(rig.log(branch).size() - before.log.size());
  Copies copies(rig.engine);
  CHECK(rig.engine.undo(job, kept));
  rig.check_state();
  CHECK(copies[branch] == rig.log(branch));
  const Pos left = std::min(kept, made);
  if (left > 0) exact.run(exact.engine.generate(twin, emitting(left)));
  if (left > 0 || made > 0) CHECK(snapshot(rig, branch) == snapshot(exact, twin));
  CHECK(rig.log(branch) == exact.log(twin));
  if (drafter) CHECK_EQ(static_cast<Pos>(drafter->fed[branch].size()), rig.engine.branch(branch).n_cached);
  CHECK(!rig.engine.undo(job, 0));  // once
  rig.step();
  CHECK_EQ(static_cast<Pos>(rig.finished[job].tokens.size()), made);  // its report says what it made
  const int calls = rig.program->calls, exact_calls = exact.program->calls;
  CHECK(rig.generate(branch, 4).tokens == exact.generate(twin, 4).tokens);
  CHECK_EQ(rig.program->calls - calls, exact.program->calls - exact_calls);
}

void the_branch_is_as_if_no_more_had_been_made() {
  for (const bool known_row : {true, false}) {
    for (int steps = 0; steps <= 13; ++steps) {
      for (Pos kept = 0; kept <= 12; ++kept) check_taken_back(known_row, steps, kept, {});
    }
  }
}

// Chains of which some tokens are right.
void the_same_under_speculation() {
  std::mt19937 random(3);
  for (const bool known_row : {true, false}) {
    Rig plain;
    const BranchId branch = begin(plain, known_row);
    plain.run(plain.engine.generate(branch, emitting(40)));
    const Tokens whole = plain.log(branch);
    const Propose propose = [&](const DraftRequest& request) {
      Draft draft;
      for (std::size_t at = request.history.size(); at < whole.size() && draft.size() < 5; ++at) {
        if (static_cast<std::int32_t>(draft.size()) >= std::min(request.max_nodes, request.max_depth)) break;
        draft.tokens.push_back(random() % 4 == 0 ? (whole[at] + 1) % 48 : whole[at]);
        draft.parents.push_back(static_cast<std::int32_t>(draft.parents.size()) - 1);
      }
      return draft;
    };
    for (int steps = 0; steps <= 6; ++steps) {
      for (Pos kept = 0; kept <= 12; ++kept) check_taken_back(known_row, steps, kept, propose);
    }
  }
}

using GoOn = std::function<void(Rig&, BranchId)>;

void check_stays(const GoOn& go_on, bool stays) {
  Rig rig;
  const BranchId branch = rig.prompt(prompt_tokens(6));
  const JobId job = rig.engine.generate(branch, emitting(5));
  rig.run(job);
  go_on(rig, branch);
  const bool open = rig.engine.branches().known(branch);
  const Tokens after = open ? rig.log(branch) : Tokens{};
  CHECK_EQ(rig.engine.undo(job, 2), !stays);
  if (open) CHECK_EQ(rig.log(branch).size(), stays ? after.size() : std::size_t{8});
  rig.drain();
}

void what_others_went_on_from_stays() {
  for (const GoOn& go_on : {
           GoOn([](Rig& rig, BranchId branch) { rig.run(rig.engine.extend(branch, Tokens{4, 5})); }),
           GoOn([](Rig& rig, BranchId branch) { rig.engine.rollback(branch, 9); }),
           GoOn([](Rig& rig, BranchId branch) { rig.generate(branch, 2); }),
           GoOn([](Rig& rig, BranchId branch) { rig.engine.generate(branch, {.max_tokens = 9}); }),  // runs
           GoOn([](Rig& rig, BranchId branch) { rig.engine.logits(branch); }),                       // runs
           GoOn([](Rig& rig, BranchId branch) { rig.engine.adopt(branch, rig.prompt(prompt_tokens(9, 3))); }),
           GoOn([](Rig& rig, BranchId branch) { rig.engine.close(branch); }),
       }) {
    check_stays(go_on, true);
  }
}

// A fork keeps what was made when it was taken, and answers were of that.
void forks_and_questions_do_not_go_on() {
  check_stays([](Rig& rig, BranchId branch) { rig.run(rig.engine.logits(branch)); }, false);
  check_stays([](Rig& rig, BranchId branch) { rig.run(rig.engine.select(branch, {{4}, {5, 6}})); }, false);
  check_stays(
      [](Rig& rig, BranchId branch) {
        const Tokens whole = rig.log(branch);
        const BranchId kid = rig.engine.fork(branch);
        CHECK(rig.log(kid) == whole);
        CHECK(rig.generate(kid, 4).tokens == rig.expected(whole, 4));
      },
      false);
}

// Who does not emit has no reader that could leave.
void other_generations_are_not_taken_back() {
  Rig rig;
  const BranchId branch = rig.prompt(prompt_tokens(6));
  const JobId job = rig.engine.generate(branch, {.max_tokens = 5, .ignore_eos = true});
  rig.run(job);
  CHECK(!rig.engine.undo(job, 2));
  CHECK_EQ(rig.log(branch).size(), std::size_t{11});
}

}  // namespace
}  // namespace agentkv::testing

int main() {
  using namespace agentkv::testing;
  the_branch_is_as_if_no_more_had_been_made();
  the_same_under_speculation();
  what_others_went_on_from_stays();
  forks_and_questions_do_not_go_on();
  other_generations_are_not_taken_back();
}
