// What closed branches leave to prompts that begin alike, and prompts that are computed together.
#include "engine/rig.h"

using namespace agentkv;
using namespace agentkv::testing;

namespace {

Tokens with(Tokens tokens, std::initializer_list<Token> more) {
  tokens.insert(tokens.end(), more);
  return tokens;
}

void a_prompt_is_found_again() {
  Rig rig({.config = {.max_batch_tokens = 32, .max_branches = 32, .retain = 1024}});
  const Tokens prompt = prompt_tokens(20);
  const BranchId first = rig.prompt(prompt);
  const Tokens said = rig.generate(first, 5).tokens;
  rig.engine.close(first);
  CHECK_EQ(rig.engine.stats().cells_used, 0);
  CHECK_EQ(rig.engine.stats().cells_retained, 24);  // the last token was never fed
  const std::uint64_t fed = rig.engine.stats().prefilled;
  const BranchId again = rig.prompt(with(joined(prompt, said), {7}));
  CHECK_EQ(rig.engine.stats().prefilled - fed, std::uint64_t{2});
  CHECK_EQ(rig.engine.stats().recalled, std::uint64_t{24});
  CHECK_EQ(rig.engine.stats().reused, std::uint64_t{24});
  CHECK(rig.generate(again, 4).tokens == rig.expected(with(joined(prompt, said), {7}), 4));
  rig.check_state();
}

void a_live_branch_comes_before_what_is_retained() {
  Rig rig({.config = {.max_batch_tokens = 32, .max_branches = 32, .retain = 1024}});
  const Tokens prompt = prompt_tokens(20);
  rig.prompt(prompt);
  rig.engine.close(rig.prompt(with(prompt, {5})));
  rig.prompt(with(prompt, {5, 6}));
  CHECK_EQ(rig.engine.stats().recalled, std::uint64_t{1});
  CHECK_EQ(rig.engine.stats().reused, std::uint64_t{20 + 21});
}

void what_is_retained_keeps_nobody_out() {
  Rig rig({.capacity = 40, .config = {.max_batch_tokens = 32, .max_branches = 32, .retain = 40}});
  rig.engine.close(rig.prompt(prompt_tokens(30, 1)));
  const BranchId branch = rig.prompt(prompt_tokens(36, 2));
  CHECK_EQ(rig.engine.stats().cells_retained, 4);
  const Finished done = rig.run(rig.engine.generate(branch, {.max_tokens = 20, .ignore_eos = true}));
  CHECK_EQ(std::string(done.finish_reason), "context_full");
  CHECK_EQ(done.tokens.size(), std::size_t{5});  // 4 cells, and a token that is pending
  CHECK_EQ(rig.engine.stats().cells_retained, 0);
  rig.check_state();
}

void prompts_of_one_moment_are_computed_once() {
  Rig rig({.config = {.max_batch_tokens = 16, .max_branches = 32}});
  const Tokens shared = prompt_tokens(40);
  std::vector<JobId> jobs;
  std::vector<Tokens> prompts;
  for (Token t = 2; t < 8; ++t) {
    prompts.push_back(with(shared, {t, 3}));
    const auto [branch, reused] = rig.engine.create(prompts.back());
    CHECK_EQ(reused, 0);
    jobs.push_back(rig.engine.extend(branch, prompts.back()));
  }
  for (const JobId job : jobs) CHECK(!rig.run(job).error);
  CHECK_EQ(rig.engine.stats().prefilled, std::uint64_t{40 + 6 * 2});
  CHECK_EQ(rig.engine.stats().reused, std::uint64_t{5 * 40});
  CHECK_EQ(rig.cells->used(), 40 + 6 * 2);
  std::size_t i = 0;
  for (const auto& [id, branch] : rig.engine.branches().all()) {
    CHECK(branch->log == prompts[i]);
    CHECK(rig.generate(id, 3).tokens == rig.expected(prompts[i], 3));
    ++i;
  }
}

// Whoever waits for a prompt goes on where that got to, whatever ended it.
void a_prompt_that_others_wait_for_may_end() {
  for (int steps = 0; steps < 4; ++steps) {
    for (const bool fails : {false, true}) {
      Rig rig({.config = {.max_batch_tokens = 16, .max_branches = 32}});
      const Tokens shared = prompt_tokens(60);
      const BranchId first = rig.engine.create().first, second = rig.engine.create().first;
      const JobId leads = rig.engine.extend(first, shared);
      const JobId waits = rig.engine.extend(second, with(shared, {9}));
      for (int i = 0; i < steps; ++i) rig.step();
      if (fails) {
        bool thrown = false;
        rig.program->fault = [&](std::span<const std::int64_t>) {
          if (!std::exchange(thrown, true)) throw ForwardFailed("once");
        };
        rig.step();
        rig.program->fault = nullptr;
      } else {
        rig.engine.close(first);
      }
      CHECK(!rig.run(waits).error);
      rig.drain();
      CHECK(rig.finished.contains(leads));
      CHECK(rig.log(second) == with(shared, {9}));
      CHECK(rig.generate(second, 3).tokens == rig.expected(with(shared, {9}), 3));
    }
  }
}

void one_that_waits_may_be_taken_back() {
  Rig rig({.config = {.max_batch_tokens = 16, .max_branches = 32}});
  const Tokens shared = prompt_tokens(60);
  const BranchId first = rig.engine.create().first, second = rig.prompt({3, 4});
  const JobId leads = rig.engine.extend(first, joined({3, 4}, shared));
  rig.generate(second, 1);  // a pending token, by which it differs
  rig.engine.rollback(second, 2);
  const JobId waits = rig.engine.extend(second, with(shared, {9}));
  rig.step();
  rig.engine.cancel(waits);
  CHECK(rig.log(second) == (Tokens{3, 4}));
  const JobId anew = rig.engine.extend(second, with(shared, {9}));
  CHECK(!rig.run(leads).error);
  CHECK(!rig.run(anew).error);
  CHECK(rig.engine.undo(anew));
  CHECK(rig.log(second) == (Tokens{3, 4}));
  CHECK(rig.generate(second, 3).tokens == rig.expected({3, 4}, 3));
}

// Cells of its own before cells that others have, too, could not be given up.
void who_takes_what_another_computed_has_nothing_of_its_own_before_it() {
  Rig rig({.config = {.max_batch_tokens = 16, .max_branches = 32}});
  const Tokens begun = prompt_tokens(30), shared = prompt_tokens(60, 7);
  std::vector<BranchId> branches;
  for (int i = 0; i < 3; ++i) branches.push_back(rig.engine.create().first);
  for (const BranchId branch : branches) CHECK(!rig.run(rig.engine.extend(branch, begun)).error);  // one after another
  CHECK_EQ(rig.cells->used(), 3 * 30);
  const auto asked = [&](BranchId branch) { return with(shared, {static_cast<Token>(9 + branch)}); };
  std::vector<JobId> jobs;
  for (const BranchId branch : branches) jobs.push_back(rig.engine.extend(branch, asked(branch)));
  for (const JobId job : jobs) CHECK(!rig.run(job).error);
  CHECK_EQ(rig.cells->used(), 30 + 60 + 3);
  for (const BranchId branch : branches) {
    CHECK_EQ(rig.engine.n_exclusive_cells(branch, 0), 1);
    CHECK(rig.generate(branch, 3).tokens == rig.expected(joined(begun, asked(branch)), 3));
  }
}

}  // namespace

int main() {
  a_prompt_is_found_again();
  a_live_branch_comes_before_what_is_retained();
  what_is_retained_keeps_nobody_out();
  prompts_of_one_moment_are_computed_once();
  a_prompt_that_others_wait_for_may_end();
  one_that_waits_may_be_taken_back();
  who_takes_what_another_computed_has_nothing_of_its_own_before_it();
}
