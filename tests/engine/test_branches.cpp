// fork, rollback, adopt, close and prefix reuse, in every state a branch can be in.
#include "engine/rig.h"

using namespace agentkv;
using namespace agentkv::testing;

namespace {

// A branch with the log `prompt_tokens(6)` + its greedy continuation, in one of the states a branch can be in.
enum class State { Stored, Pending, Refeed };
constexpr State kStates[] = {State::Stored, State::Pending, State::Refeed};

BranchId in_state(Rig& rig, State state) {
  const BranchId branch = rig.prompt(prompt_tokens(6));
  if (state == State::Pending) rig.generate(branch, 3);
  if (state == State::Refeed) {
    rig.generate(branch, 3);
    rig.engine.rollback(branch, 7);  // all cached, but no row is known
    CHECK_EQ(rig.engine.branch(branch).n_cached, 7);
    CHECK(!rig.engine.branch(branch).next_logits);
  }
  return branch;
}

void check_goes_on(Rig& rig, BranchId branch, const Tokens& history) {
  CHECK(rig.log(branch) == history);
  CHECK(rig.run(rig.engine.logits(branch)).logits == rig.row(history));
  CHECK(rig.generate(branch, 4).tokens == rig.expected(history, 4));
}

void forks_carry_everything() {
  for (const State state : kStates) {
    Rig rig;
    const BranchId trunk = in_state(rig, state);
    const Tokens history = rig.log(trunk);
    const Cell used = rig.cells->used();
    const BranchId a = rig.engine.fork(trunk), b = rig.engine.fork(trunk);
    CHECK_EQ(rig.cells->used(), used);
    rig.run(rig.engine.extend(a, Tokens{9, 9}));
    check_goes_on(rig, trunk, history);
    check_goes_on(rig, a, joined(history, {9, 9}));
    rig.engine.close(trunk);
    check_goes_on(rig, b, history);
  }
}

void a_copy_draws_the_same_and_leaves_no_trace() {
  for (const State state : kStates) {
    Rig rig;
    const GenerateOptions warm = {.max_tokens = 6, .sampling = {.temperature = 1}, .seed = 3, .ignore_eos = true};
    const BranchId branch = in_state(rig, state);
    const BranchId untouched = rig.engine.fork(branch);
    const BranchId copied = rig.engine.copy(branch);
    CHECK(rig.log(copied) == rig.log(branch));
    const Tokens drawn = rig.run(rig.engine.generate(copied, warm)).tokens;
    CHECK(rig.run(rig.engine.generate(branch, warm)).tokens == drawn);
    rig.engine.adopt(branch, copied);
    rig.engine.close(copied);
    CHECK(rig.run(rig.engine.generate(rig.engine.fork(branch), warm)).tokens.size() == 6);
    CHECK(rig.run(rig.engine.generate(untouched, warm)).tokens != drawn);
  }
  Rig rig;
  const BranchId busy = in_state(rig, State::Stored);
  rig.engine.generate(busy, {.max_tokens = 100, .ignore_eos = true});
  CHECK_THROWS(rig.engine.copy(busy), BranchBusy);
}

void rollback_forgets() {
  for (const State state : kStates) {
    Rig probe;
    const int length = static_cast<int>(probe.log(in_state(probe, state)).size());
    for (int keep = 1; keep <= length; ++keep) {
      Rig rig;
      const BranchId branch = in_state(rig, state);
      const BranchId witness = rig.engine.fork(branch);
      const Tokens history = rig.log(branch);
      rig.engine.rollback(branch, keep);
      rig.check_state();
      check_goes_on(rig, branch, Tokens(history.begin(), history.begin() + keep));
      check_goes_on(rig, witness, history);
    }
    Rig rig;
    const BranchId branch = in_state(rig, state);
    rig.engine.rollback(branch, 0);
    CHECK_EQ(rig.cells->used(), 0);
    CHECK_THROWS(rig.engine.logits(branch), EmptyBranch);
    rig.run(rig.engine.extend(branch, Tokens{4, 5}));
    check_goes_on(rig, branch, {4, 5});
  }
}

void rollback_to_the_length_keeps_the_row() {
  Rig rig;
  const BranchId branch = in_state(rig, State::Stored);
  const int calls = rig.program->calls;
  rig.engine.rollback(branch, 6);
  rig.run(rig.engine.logits(branch));
  CHECK_EQ(rig.program->calls, calls);
}

void adopt_takes_over() {
  for (const State of_dst : kStates) {
    for (const State of_src : kStates) {
      Rig rig;
      const BranchId dst = in_state(rig, of_dst);
      const BranchId src = rig.engine.fork(in_state(rig, of_src));
      const Tokens history = rig.log(src);
      rig.engine.adopt(dst, src);
      rig.check_state();
      CHECK_EQ(rig.engine.branch(dst).rng_stream, rig.engine.branch(src).rng_stream);
      rig.run(rig.engine.extend(src, Tokens{3}));
      check_goes_on(rig, dst, history);
      rig.engine.close(src);
    }
  }
  Rig rig;
  const BranchId branch = in_state(rig, State::Stored);
  rig.engine.adopt(branch, branch);
  check_goes_on(rig, branch, prompt_tokens(6));
}

void an_adopted_stream_goes_on_as_the_winners() {
  const GenerateOptions options{.max_tokens = 6, .sampling = {.temperature = 1}, .seed = 5, .ignore_eos = true};
  Rig rig;
  const BranchId trunk = rig.prompt(prompt_tokens(5));
  const BranchId kid = rig.engine.fork(trunk);
  rig.engine.adopt(trunk, kid);
  const Tokens of_trunk = rig.run(rig.engine.generate(trunk, options)).tokens;
  CHECK(of_trunk == rig.run(rig.engine.generate(kid, options)).tokens);
}

void empty_branches_can_do_what_makes_sense() {
  Rig rig;
  const BranchId empty = rig.engine.create().first;
  const BranchId other = rig.engine.fork(empty);
  rig.engine.rollback(empty, 0);
  const BranchId full = rig.prompt({2, 3});
  rig.engine.adopt(full, empty);
  CHECK_EQ(rig.cells->used(), 0);
  CHECK(!rig.run(rig.engine.extend(other, Tokens{})).error);
  CHECK(rig.log(other).empty());
  rig.engine.close(empty);
  rig.check_state();
}

void a_fork_of_a_busy_branch_takes_it_as_it_is() {
  Rig rig;
  const Tokens prompt = prompt_tokens(70);
  const BranchId branch = rig.engine.create().first;
  const JobId extend = rig.engine.extend(branch, prompt);
  rig.step();
  const BranchId part = rig.engine.fork(branch);
  CHECK(rig.log(part) == Tokens(prompt.begin(), prompt.begin() + 32));
  rig.run(extend);
  const JobId generate = rig.engine.generate(branch, {.max_tokens = 10, .ignore_eos = true});
  rig.step();
  const BranchId mid = rig.engine.fork(branch);
  const Tokens so_far = rig.log(mid);
  CHECK_EQ(so_far.size(), std::size_t{72});
  rig.run(generate);
  check_goes_on(rig, part, Tokens(prompt.begin(), prompt.begin() + 32));
  check_goes_on(rig, mid, so_far);
}

void busy_branches_refuse_all_else() {
  Rig rig;
  const BranchId busy = rig.prompt({2, 3}), other = rig.prompt({4, 5});
  const JobId job = rig.engine.generate(busy, {.max_tokens = 9, .ignore_eos = true});
  CHECK_THROWS(rig.engine.extend(busy, Tokens{2}), BranchBusy, "branch 0");
  CHECK_THROWS(rig.engine.generate(busy, {.max_tokens = 1}), BranchBusy);
  CHECK_THROWS(rig.engine.logits(busy), BranchBusy);
  CHECK_THROWS(rig.engine.select(busy, {{2}}), BranchBusy);
  CHECK_THROWS(rig.engine.rollback(busy, 1), BranchBusy);
  CHECK_THROWS(rig.engine.adopt(busy, other), BranchBusy);
  CHECK_THROWS(rig.engine.adopt(other, busy), BranchBusy);
  CHECK((rig.log(other) == Tokens{4, 5}));
  rig.engine.fork(busy);
  CHECK_EQ(rig.run(job).tokens.size(), std::size_t{9});
  rig.engine.rollback(busy, 1);
}

void closed_branches_are_gone() {
  Rig rig;
  const BranchId branch = rig.prompt({2, 3});
  rig.engine.close(branch);
  rig.engine.close(branch);
  CHECK_EQ(rig.cells->used(), 0);
  CHECK_THROWS(rig.engine.fork(branch), BranchClosed, "branch 0", "closed");
  CHECK_THROWS(rig.engine.extend(branch, Tokens{2}), BranchClosed);
  CHECK_THROWS(rig.engine.rollback(branch, 0), BranchClosed);
  CHECK_THROWS(rig.engine.branch(branch), BranchClosed);
  const BranchId next = rig.prompt({2, 3});
  CHECK(next != branch);  // a stale handle never means another branch
  CHECK_THROWS(rig.engine.adopt(next, branch), BranchClosed);
  CHECK_THROWS(rig.engine.rollback(next, 3), InvalidRollback, "length 3", "2 tokens");
  CHECK_THROWS(rig.engine.rollback(next, -1), InvalidRollback, "-1");
}

void branches_are_bounded() {
  RigOptions options;
  options.max_sequences = 256;
  options.config.max_branches = 256;
  Rig rig(options);
  const BranchId trunk = rig.prompt({2, 3});
  for (int i = 1; i < 256; ++i) rig.engine.fork(trunk);
  CHECK_THROWS(rig.engine.fork(trunk), TooManyBranches, "1 more branch was", "256", "close");
  CHECK_THROWS(rig.engine.create(), TooManyBranches);
  rig.engine.close(trunk);
  const BranchId last = rig.engine.create().first;
  CHECK_EQ(rig.engine.branch(last).rng_stream, std::uint64_t{1});  // a refused create takes no stream
  CHECK_THROWS(Engine(rig.program, rig.cells, Vocabulary(48, {}, {}, {}), {.max_branches = 257}), InvalidEngine, "257",
               "256 sequences");
}

void many_forks_are_made_or_none() {
  Rig rig;
  const BranchId trunk = rig.prompt({2, 3});
  CHECK_THROWS(rig.engine.fork(trunk, 32), TooManyBranches, "32 more", "1 of at most 32", "close");
  CHECK_EQ(rig.engine.branches().size(), std::size_t{1});
  const std::vector<BranchId> kids = rig.engine.fork(trunk, 31);
  CHECK_EQ(kids.size(), std::size_t{31});
  for (const BranchId kid : kids) CHECK(rig.log(kid) == rig.log(trunk));
}

void changes_are_told_as_verbs_and_jobs_end() {
  Rig rig;
  Copies copies(rig.engine);
  const BranchId a = rig.prompt(prompt_tokens(6));
  CHECK(copies[a] == prompt_tokens(6));
  CHECK(rig.engine.take_changes().empty());
  rig.generate(a, 3);
  CHECK(copies[a] == rig.log(a));
  const Tokens before = rig.log(a);
  const JobId job = rig.engine.generate(a, {.max_tokens = 9, .ignore_eos = true});
  rig.step();
  rig.step();
  CHECK(copies[a] == before);  // under way
  const BranchId part = rig.engine.fork(a);
  CHECK(copies[part] == rig.log(a));
  rig.engine.cancel(job);
  rig.engine.rollback(a, 4);  // at once: the change is one
  CHECK(copies[a] == rig.log(a));
  CHECK_EQ(copies[a].size(), std::size_t{4});
  const BranchId b = rig.prompt(joined(Tokens(before.begin(), before.begin() + 2), {9, 9, 9, 9, 9}));
  rig.engine.adopt(a, b);
  const std::vector<LogChange> adopted = rig.engine.take_changes();
  CHECK_EQ(adopted.back().branch, a);
  CHECK_EQ(adopted.back().kept, 2);  // as far as the two agree
  CHECK(adopted.back().appended == Tokens({9, 9, 9, 9, 9}));
  rig.engine.generate(a, {.max_tokens = 5, .ignore_eos = true});
  rig.step();
  const Tokens last = rig.log(a);
  rig.engine.close(a);
  const std::vector<LogChange> words = rig.engine.take_changes();
  CHECK_EQ(words.size(), std::size_t{1});
  CHECK_EQ(words[0].kept + static_cast<Pos>(words[0].appended.size()), static_cast<Pos>(last.size()));
  CHECK(rig.engine.take_changes().empty());
}

void an_extend_is_taken_back_unless_its_branch_went_on() {
  Rig rig;
  const BranchId branch = rig.prompt(prompt_tokens(6));
  const auto extend = [&] {
    const JobId job = rig.engine.extend(branch, Tokens{4, 5});
    CHECK(!rig.run(job).error);
    return job;
  };
  rig.engine.undo(extend());
  CHECK(rig.log(branch) == prompt_tokens(6));
  check_goes_on(rig, branch, prompt_tokens(6));
  rig.engine.rollback(branch, 6);
  const JobId built_on = extend();
  const Tokens more = rig.generate(branch, 2).tokens;
  rig.engine.undo(built_on);
  CHECK(rig.log(branch) == joined(joined(prompt_tokens(6), {4, 5}), more));
  rig.engine.rollback(branch, 6);
  const JobId forgotten = extend();
  rig.engine.rollback(branch, 7);
  rig.engine.undo(forgotten);
  CHECK_EQ(rig.log(branch).size(), std::size_t{7});
  rig.engine.rollback(branch, 6);
  const JobId away = extend();
  const auto pin = rig.engine.pinned().take_unshared(branch);
  rig.engine.offload(branch, pin.id);  // that moves cells, not history
  CHECK(rig.engine.undo(away));
  CHECK(rig.log(branch) == prompt_tokens(6));
  rig.engine.reload(branch, pin.id);
  rig.engine.pinned().unpin(pin.id);
  check_goes_on(rig, branch, prompt_tokens(6));
  rig.engine.rollback(branch, 6);
  const JobId busy = extend();
  rig.engine.generate(branch, {.max_tokens = 3});
  rig.engine.undo(busy);
  rig.drain();
  CHECK(rig.log(branch).size() > std::size_t{9});
}

void positions_are_bounded() {
  RigOptions options;
  options.config.max_positions = 10;
  Rig rig(options);
  const BranchId branch = rig.prompt(prompt_tokens(6));
  CHECK_THROWS(rig.engine.extend(branch, prompt_tokens(5)), PositionsExhausted, "11 positions", "has 10", "roll");
  CHECK_THROWS(rig.engine.select(branch, {{4}, prompt_tokens(6)}), PositionsExhausted, "11 positions");
  rig.run(rig.engine.select(branch, {{4}, prompt_tokens(5)}));
  CHECK(rig.log(branch) == prompt_tokens(6));
  const Finished f = rig.run(rig.engine.generate(branch, {.max_tokens = 50, .ignore_eos = true}));
  CHECK_EQ(std::string(f.finish_reason), "context_full");
  CHECK_EQ(f.tokens.size(), std::size_t{4});
  CHECK(f.tokens == rig.expected(prompt_tokens(6), 4));
  CHECK_THROWS(rig.engine.generate(branch, {.max_tokens = 1}), PositionsExhausted, "11 positions");
  CHECK(rig.run(rig.engine.logits(branch)).logits == rig.row(rig.log(branch)));
  rig.engine.rollback(branch, 9);
  CHECK_EQ(std::string(rig.run(rig.engine.generate(branch, {.max_tokens = 1})).finish_reason), "length");
  CHECK_EQ(rig.program->last_position, std::int64_t{9});
}

void create_shares_the_longest_cached_prefix() {
  Rig rig;
  const Tokens prompt = prompt_tokens(40);
  const BranchId a = rig.prompt(Tokens(prompt.begin(), prompt.begin() + 20));
  rig.prompt(joined(Tokens(prompt.begin(), prompt.begin() + 10), {2, 2, 2}));
  const Cell used = rig.cells->used();
  const auto [b, reused] = rig.engine.create(prompt);
  CHECK_EQ(reused, 20);
  CHECK_EQ(rig.cells->used(), used);
  CHECK(rig.log(b) == Tokens(prompt.begin(), prompt.begin() + 20));
  rig.run(rig.engine.extend(b, Tokens(prompt.begin() + 20, prompt.end())));
  check_goes_on(rig, b, prompt);
  CHECK_EQ(rig.engine.stats().reused, std::uint64_t{10 + 20});

  CHECK_EQ(rig.engine.create(Tokens(prompt.begin(), prompt.begin() + 20)).second, 19);  // never the last token
  CHECK_EQ(rig.engine.create(Tokens{prompt[0]}).second, 0);
  CHECK_EQ(rig.engine.create(Tokens{47, 46, 45}).second, 0);
  const Tokens generated = rig.generate(a, 3).tokens;  // the last of them is not in the cache
  CHECK_EQ(rig.engine.create(joined(rig.log(a), {5, 5})).second, 22);
}

}  // namespace

int main() {
  forks_carry_everything();
  a_copy_draws_the_same_and_leaves_no_trace();
  rollback_forgets();
  rollback_to_the_length_keeps_the_row();
  adopt_takes_over();
  an_adopted_stream_goes_on_as_the_winners();
  empty_branches_can_do_what_makes_sense();
  a_fork_of_a_busy_branch_takes_it_as_it_is();
  busy_branches_refuse_all_else();
  closed_branches_are_gone();
  branches_are_bounded();
  many_forks_are_made_or_none();
  changes_are_told_as_verbs_and_jobs_end();
  an_extend_is_taken_back_unless_its_branch_went_on();
  positions_are_bounded();
  create_shares_the_longest_cached_prefix();
}
