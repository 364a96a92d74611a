// Generations under constraints, with drafts of every quality, forks, rollbacks and failures: their tokens are those of
// a plain loop of mask, draw and advance.
#include <algorithm>
#include <random>

#include "engine/test_drafter.h"
#include "engine/test_rules.h"

namespace agentkv::testing {
namespace {

constexpr Token kVocab = 48;

RigOptions roomy() {
  return {.capacity = 4096,
          .info = {.vocab_size = kVocab, .max_tokens = 256, .max_logits = 200},
          .config = {.max_batch_tokens = 256, .max_branches = 32}};
}

// A rule that hashes what was said into what may come: one token about as often as `forcing` says, else a few or many.
Next random_rule(std::uint64_t seed, double forcing, std::size_t complete_at = 1u << 30) {
  return [=](const Tokens& said) -> std::optional<Tokens> {
    if (said.size() >= complete_at) return std::nullopt;
    std::uint64_t h = seed;
    for (const Token token : said) h = mixed(h * 31 + static_cast<std::uint64_t>(token) + 1);
    const bool one = static_cast<double>(h % 1000) < 1000 * forcing;
    const std::size_t count = one ? 1 : 2 + mixed(h) % 30;
    Tokens allowed;
    for (std::uint64_t i = 0; allowed.size() < count; ++i) {
      const auto token = static_cast<Token>(1 + mixed(h + 7 * i) % (kVocab - 1));
      if (std::find(allowed.begin(), allowed.end(), token) == allowed.end()) allowed.push_back(token);
    }
    return allowed;
  };
}

struct Rules {
  explicit Rules(bool forces = true) : driver(std::make_shared<TestRules>(kVocab, forces)) {}
  std::shared_ptr<Constraint> operator()(Next next) const {
    return std::make_shared<TestRule>(driver, std::move(next));
  }
  const std::shared_ptr<TestRules> driver;
};

Finished run(Rig& rig, BranchId branch, GenerateOptions options, std::shared_ptr<Constraint> constraint) {
  options.constraint = std::move(constraint);
  return rig.run(rig.engine.generate(branch, options));
}

// Trees of right tokens, wrong ones that are allowed, and forbidden ones.
std::shared_ptr<Drafter> random_drafter(const Rig& rig, std::mt19937& random, bool sees_forced) {
  const auto drafter = std::make_shared<TestDrafter>([&](const DraftRequest& request) {
    Draft draft;
    const auto nodes = static_cast<std::size_t>(1 + random() % 12);
    while (draft.size() < std::min(nodes, static_cast<std::size_t>(request.max_nodes))) {
      const auto parent = static_cast<std::int32_t>(random() % (draft.size() + 1)) - 1;
      const auto token = static_cast<Token>(random() % static_cast<unsigned>(rig.options.info.vocab_size));
      if (draft.child(parent, token) >= 0) continue;
      draft.tokens.push_back(token);
      draft.parents.push_back(parent);
    }
    return draft;
  });
  drafter->sees_forced = sees_forced;
  return drafter;
}

std::shared_ptr<Drafter> no_drafter(const Rig&, std::mt19937&) { return nullptr; }
std::shared_ptr<Drafter> blind_drafter(const Rig& rig, std::mt19937& random) {
  return random_drafter(rig, random, false);
}
std::shared_ptr<Drafter> seeing_drafter(const Rig& rig, std::mt19937& random) {
  return random_drafter(rig, random, true);
}
std::shared_ptr<Drafter> mixed_drafter(const Rig& rig, std::mt19937& random) {
  return std::make_shared<TestMixture>(std::vector{blind_drafter(rig, random), seeing_drafter(rig, random)});
}

void any_draft_and_any_rule_give_the_tokens_of_a_plain_loop() {
  std::mt19937 random(11);
  std::uint64_t forced = 0, accepted = 0;
  int added = 0;
  for (const double forcing : {0.0, 0.5, 0.9}) {
    for (const float temperature : {0.0f, 0.9f}) {
      for (const auto& make_drafter : {no_drafter, blind_drafter, seeing_drafter, mixed_drafter}) {
        for (const bool forces : {false, true}) {
          Rig rig(roomy());
          const Rules rules(forces);
          const auto drafter = make_drafter(rig, random);
          if (drafter) rig.engine.attach(drafter);
          const Sampling sampling{.temperature = temperature, .top_k = 20, .repetition_penalty = 1.1f};
          std::vector<std::pair<JobId, Said>> jobs;
          for (std::uint64_t i = 0; i < 6; ++i) {
            const Tokens prompt = prompt_tokens(3 + static_cast<int>(i), i);
            const BranchId branch = rig.prompt(prompt);
            const Next next = random_rule(i, forcing, i % 2 ? 17 : 1u << 30);
            GenerateOptions options{.max_tokens = 30, .sampling = sampling, .seed = 5, .drafter = drafter};
            options.constraint = rules(next);
            jobs.emplace_back(rig.engine.generate(branch, options),
                              said_under(rig, next, prompt, {}, 30, sampling, 5, rig.engine.branch(branch).rng_stream));
          }
          rig.drain();
          for (const auto& [job, want] : jobs) {
            CHECK(!rig.finished[job].error);
            CHECK(rig.finished[job].tokens == want.tokens);
            CHECK(rig.finished[job].finish_reason == want.reason);
          }
          const Stats stats = rig.engine.stats();
          CHECK(forces || stats.forced == 0);
          CHECK(drafter || stats.drafted == 0);
          added += rules.driver->added;
          forced += stats.forced;
          accepted += stats.accepted;
        }
      }
    }
  }
  CHECK(added > 100);
  CHECK(forced > 200);
  CHECK(accepted > 10);
}

void a_drafter_that_is_right_and_a_grammar_that_forces_go_together() {
  Rig rig(roomy());
  const Rules rules;
  const Next next = random_rule(3, 0.6);
  const Tokens prompt = prompt_tokens(5);
  const Said want = said_under(rig, next, prompt, {}, 60);
  const Tokens whole = joined(prompt, want.tokens);
  const auto drafter = std::make_shared<TestDrafter>([&](const DraftRequest& request) {
    Draft draft;
    for (std::size_t at = request.history.size(); at < whole.size() && draft.size() < 9; ++at) {
      draft.tokens.push_back(whole[at]);
      draft.parents.push_back(static_cast<std::int32_t>(draft.parents.size()) - 1);
    }
    return draft;
  });
  rig.engine.attach(drafter);
  const int before = rig.program->calls;
  const Finished got = run(rig, rig.prompt(prompt), {.max_tokens = 60, .drafter = drafter}, rules(next));
  CHECK(got.tokens == want.tokens);
  const Stats stats = rig.engine.stats();
  CHECK(stats.forced > 2);
  CHECK(stats.drafted <= stats.accepted + 1);  // the last token ends it before its node counts
  CHECK(stats.accepted + stats.forced > 45);
  CHECK(rig.program->calls - before < 14);
}

void what_is_forced_rides_without_a_drafter() {
  Rig rig(roomy());
  const Rules rules;
  const Next counting = [](const Tokens& said) -> std::optional<Tokens> {
    return said.size() == 40 ? std::nullopt : std::optional(Tokens{static_cast<Token>(2 + said.size())});
  };
  const BranchId branch = rig.prompt(prompt_tokens(5));
  const int before = rig.program->calls;
  const Finished got = run(rig, branch, {.max_tokens = 100}, rules(counting));
  CHECK_EQ(got.tokens.size(), 40u);
  CHECK_EQ(std::string(got.finish_reason), "stop");
  CHECK_EQ(got.output_began, 5);
  CHECK_EQ(rig.program->calls - before, 1);
  CHECK_EQ(rig.engine.stats().forced, 39u);  // the first came of the row that the prompt left
  CHECK_EQ(rig.engine.stats().drafted, 0u);
}

void all_generations_of_a_step_take_their_turn_together() {
  Rig rig(roomy());
  const Rules rules;
  std::vector<BranchId> branches;
  for (std::uint64_t i = 0; i < 8; ++i) {
    branches.push_back(rig.prompt(prompt_tokens(4, i)));
  }
  for (std::uint64_t i = 0; i < 8; ++i) {
    GenerateOptions options{.max_tokens = 10};
    options.constraint = rules(random_rule(i, 0.3));
    rig.engine.generate(branches[i], options);
  }
  const int calls = rules.driver->calls, fillings = rules.driver->fillings;
  const StepReport first = rig.step();  // draws from the rows of the prompts, then runs a forward
  CHECK_EQ(first.forwards, 1);
  CHECK_EQ(rules.driver->calls - calls, 2);
  CHECK_EQ(rules.driver->fillings - fillings, 2);
  CHECK_EQ(rules.driver->most_turns, 8u);
  rig.step();
  CHECK(rules.driver->calls - calls <= 4);  // one more where somebody is at its last token
  rig.drain();
}

void an_output_is_complete_with_its_last_token() {
  const Next three = [](const Tokens& said) -> std::optional<Tokens> {
    return said.size() == 3 ? std::nullopt : std::optional(Tokens{5, 6});
  };
  for (const int max_tokens : {2, 3, 4}) {
    Rig rig;
    const Rules rules;
    const Finished got = run(rig, rig.prompt(prompt_tokens(5)), {.max_tokens = max_tokens}, rules(three));
    CHECK_EQ(got.tokens.size(), static_cast<std::size_t>(std::min(max_tokens, 3)));
    CHECK_EQ(std::string(got.finish_reason), max_tokens < 3 ? "length" : "stop");
  }
  Rig full({.capacity = 7});  // five of the prompt, and two of three tokens
  const Rules rules;
  const Finished got = run(full, full.prompt(prompt_tokens(5)), {.max_tokens = 9}, rules(three));
  CHECK_EQ(std::string(got.finish_reason), "stop");
}

void the_end_comes_where_the_rule_allows_it() {
  Rig rig;
  const Rules rules;
  const Next ends = [](const Tokens& said) -> std::optional<Tokens> { return said.size() < 2 ? Tokens{7} : Tokens{0}; };
  const Finished got = run(rig, rig.prompt(prompt_tokens(5)), {.max_tokens = 9}, rules(ends));
  CHECK(got.tokens == Tokens({7, 7, 0}));
  CHECK_EQ(std::string(got.finish_reason), "eos");
}

void a_full_cache_ends_it_at_the_same_token() {
  const Next next = random_rule(4, 0.5);
  const Tokens prompt = prompt_tokens(5);
  for (Cell capacity = 6; capacity < 30; ++capacity) {
    std::mt19937 random(static_cast<unsigned>(capacity));
    Rig plain({.capacity = capacity}), drafted({.capacity = capacity});
    const Rules quiet(false), rules;
    const auto drafter = random_drafter(drafted, random, capacity % 2);
    drafted.engine.attach(drafter);
    const Finished want = run(plain, plain.prompt(prompt), {.max_tokens = 50}, quiet(next));
    const Finished got = run(drafted, drafted.prompt(prompt), {.max_tokens = 50, .drafter = drafter}, rules(next));
    CHECK(got.tokens == want.tokens);
    CHECK_EQ(std::string(got.finish_reason), std::string(want.finish_reason));
  }
}

void an_output_that_was_cut_short_goes_on_under_the_same_constraint() {
  Rig rig(roomy());
  const Rules rules;
  const Next next = random_rule(9, 0.4, 30);
  const auto constraint = rules(next);
  const Tokens prompt = prompt_tokens(6);
  const Said want = said_under(rig, next, prompt, {}, 60);
  const BranchId branch = rig.prompt(prompt);
  Tokens got;
  const char* reason = "length";
  for (int n = 1; std::string(reason) == "length"; n = n % 5 + 1) {
    const Finished part = run(rig, branch, {.max_tokens = n}, constraint);
    CHECK_EQ(part.output_began, 6);
    got = joined(got, part.tokens);
    reason = part.finish_reason;
  }
  CHECK(got == want.tokens);
  CHECK_EQ(std::string(reason), want.reason);
  CHECK_EQ(run(rig, branch, {.max_tokens = 1}, constraint).output_began, rig.engine.branch(branch).length() - 1);
}

void forks_and_rollbacks_go_on_in_the_middle() {
  Rig rig(roomy());
  const Rules rules;
  const Next next = random_rule(21, 0.4, 25);
  const auto constraint = rules(next);
  const Tokens prompt = prompt_tokens(6);
  const Said want = said_under(rig, next, prompt, {}, 60);
  const BranchId trunk = rig.prompt(prompt);
  CHECK(run(rig, trunk, {.max_tokens = 60}, constraint).tokens == want.tokens);
  for (Pos length = 7; length < rig.engine.branch(trunk).length(); ++length) {
    const BranchId child = rig.engine.fork(trunk);
    rig.engine.rollback(child, length);
    const BranchId grandchild = rig.engine.fork(child);
    const BranchId heir = rig.prompt(prompt_tokens(3, 9));
    rig.engine.adopt(heir, child);
    for (const BranchId id : {child, grandchild, heir}) {
      const Finished rest = run(rig, id, {.max_tokens = 60}, constraint);
      CHECK_EQ(rest.output_began, 6);
      CHECK(rig.log(id) == joined(prompt, want.tokens));
      CHECK_EQ(std::string(rest.finish_reason), "stop");
      rig.engine.close(id);
    }
  }
  rig.engine.rollback(trunk, 6);
  CHECK(run(rig, trunk, {.max_tokens = 60}, constraint).tokens == want.tokens);  // from the beginning
}

void a_fork_of_a_running_generation_goes_on_with_its_output() {
  Rig rig(roomy());
  const Rules rules;
  const Next next = random_rule(22, 0.0, 25);
  const auto constraint = rules(next);
  const Tokens prompt = prompt_tokens(6);
  const BranchId trunk = rig.prompt(prompt);
  GenerateOptions options{.max_tokens = 60};
  options.constraint = constraint;
  const JobId job = rig.engine.generate(trunk, options);
  std::vector<BranchId> forks;
  while (!rig.finished.contains(job)) {
    rig.step();
    forks.push_back(rig.engine.fork(trunk));
  }
  CHECK(forks.size() > 20);
  forks.pop_back();  // of the whole output
  for (const BranchId fork : forks) {
    run(rig, fork, {.max_tokens = 60}, constraint);
    CHECK(rig.log(fork) == rig.log(trunk));
  }
}

void other_tokens_and_other_constraints_close_an_output() {
  Rig rig(roomy());
  const Rules rules;
  const Next next = random_rule(23, 0.3);
  const auto constraint = rules(next);
  const Tokens prompt = prompt_tokens(6);
  const BranchId branch = rig.prompt(prompt);
  run(rig, branch, {.max_tokens = 4}, constraint);
  const BranchId extended = rig.engine.fork(branch);
  rig.run(rig.engine.extend(extended, Tokens{3}));
  CHECK_EQ(run(rig, extended, {.max_tokens = 1}, constraint).output_began, 11);
  const BranchId free = rig.engine.fork(branch);
  CHECK_EQ(rig.generate(free, 2).output_began, -1);
  CHECK_EQ(run(rig, free, {.max_tokens = 1}, constraint).output_began, 12);
  const BranchId other = rig.engine.fork(branch);
  CHECK_EQ(run(rig, other, {.max_tokens = 1}, rules(next)).output_began, 10);
  // What was put behind it and taken away again leaves it open.
  const BranchId back = rig.engine.fork(branch);
  rig.run(rig.engine.extend(back, Tokens{3, 4}));
  rig.engine.rollback(back, 10);
  CHECK_EQ(run(rig, back, {.max_tokens = 1}, constraint).output_began, 6);
}

void a_cancelled_generation_leaves_its_output_open() {
  Rig rig(roomy());
  const Rules rules;
  const Next next = random_rule(24, 0.0, 25);
  GenerateOptions options{.max_tokens = 60};
  options.constraint = rules(next);
  const Tokens prompt = prompt_tokens(6);
  const BranchId branch = rig.prompt(prompt);
  const JobId job = rig.engine.generate(branch, options);
  for (int i = 0; i < 5; ++i) rig.step();
  rig.engine.cancel(job);
  CHECK_EQ(rig.run(job).output_began, 6);
  rig.run(rig.engine.generate(branch, options));
  CHECK(rig.log(branch) == joined(prompt, said_under(rig, next, prompt, {}, 60).tokens));
}

// Whatever a rule does, the branch beside it goes on.
void check_failure(Rig& rig, const std::shared_ptr<Constraint>& constraint, const std::string& words,
                   std::size_t made) {
  const Tokens prompt = prompt_tokens(6), other = prompt_tokens(5, 2);
  GenerateOptions options{.max_tokens = 12};
  options.constraint = constraint;
  const JobId bad = rig.engine.generate(rig.prompt(prompt), options);
  const JobId good = rig.engine.generate(rig.prompt(other), {.max_tokens = 8, .ignore_eos = true});
  rig.drain();
  CHECK(rig.finished[bad].error->kind == ErrorKind::StepFailed);
  CHECK(rig.finished[bad].error->message.find(words) != std::string::npos);
  CHECK_EQ(rig.finished[bad].tokens.size(), made);
  CHECK_EQ(rig.finished[good].tokens.size(), 8u);
}

void a_failure_is_its_own_generations() {
  const Next throws = [](const Tokens& said) -> std::optional<Tokens> {
    if (said.size() == 3) throw std::runtime_error("lost the thread");
    return Tokens{5, 6};
  };
  const Next dead_end = [](const Tokens& said) -> std::optional<Tokens> {
    return said.size() == 3 ? Tokens{} : Tokens{5, 6};
  };
  {
    Rig rig;
    check_failure(rig, Rules()(throws), "test failed: lost the thread", 3);
  }
  {
    Rig rig;
    check_failure(rig, Rules()(dead_end), "allows no token", 3);
  }
  Rig rig;
  const Rules rules;
  rules.driver->fault = [n = 0]() mutable {
    if (++n == 3) throw std::runtime_error("no masks today");
  };
  check_failure(rig, rules(random_rule(2, 0)), "test failed: no masks today", 2);
  // The driver serves the next one.
  CHECK(!run(rig, rig.prompt(prompt_tokens(4)), {.max_tokens = 5}, rules(random_rule(2, 0))).error);
}

void a_draft_that_cannot_grow_fails_its_generation() {
  Rig rig;
  const Rules rules;
  std::mt19937 random(1);
  const auto drafter = random_drafter(rig, random, true);
  rig.engine.attach(drafter);
  rules.driver->growth_fault = [] { throw std::runtime_error("no growth today"); };
  const GenerateOptions options{.max_tokens = 5, .drafter = drafter};
  const Finished failed = run(rig, rig.prompt(prompt_tokens(4)), options, rules(random_rule(2, 0)));
  CHECK(failed.error && failed.error->message.find("test failed: no growth today") != std::string::npos);
  rules.driver->growth_fault = {};
  CHECK(!run(rig, rig.prompt(prompt_tokens(4)), options, rules(random_rule(2, 0))).error);
}

void a_forward_that_fails_loses_nothing() {
  Rig rig(roomy());
  const Rules rules;
  const Next next = random_rule(31, 0.5, 40);
  const auto constraint = rules(next);
  const Tokens prompt = prompt_tokens(6);
  const BranchId branch = rig.prompt(prompt), beside = rig.prompt(prompt_tokens(4, 3));
  int calls = 0;
  rig.program->fault = [&](std::span<const std::int64_t>) {
    if (++calls % 3 == 0) throw std::runtime_error("out of luck");
  };
  GenerateOptions options{.max_tokens = 60};
  options.constraint = constraint;
  bool complete = false;
  while (!complete) {
    const JobId job = rig.engine.generate(branch, options);
    if (!rig.engine.branch(beside).job) rig.engine.generate(beside, {.max_tokens = 3, .ignore_eos = true});
    const Finished part = rig.run(job);
    complete = !part.error && std::string(part.finish_reason) == "stop";
  }
  CHECK(rig.log(branch) == joined(prompt, said_under(rig, next, prompt, {}, 60).tokens));
}

// More than a program takes in one forward, and little room for what is forced.
void small_forwards_change_nothing() {
  for (const std::int32_t most : {1, 2, 3, 5}) {
    Rig rig({.info = {.vocab_size = kVocab, .max_tokens = most, .max_logits = most}});
    const Rules rules;
    std::vector<std::pair<JobId, Said>> jobs;
    for (std::uint64_t i = 0; i < 4; ++i) {
      const Next next = random_rule(i, 0.7, 20);
      const Tokens prompt = prompt_tokens(4, i);
      GenerateOptions options{.max_tokens = 60};
      options.constraint = rules(next);
      jobs.emplace_back(rig.engine.generate(rig.prompt(prompt), options), said_under(rig, next, prompt, {}, 60));
    }
    rig.drain();
    for (const auto& [job, want] : jobs) CHECK(rig.finished[job].tokens == want.tokens);
    CHECK_EQ(rig.engine.stats().forced > 0, most > 2);
  }
}

}  // namespace
}  // namespace agentkv::testing

int main() {
  using namespace agentkv::testing;
  any_draft_and_any_rule_give_the_tokens_of_a_plain_loop();
  a_drafter_that_is_right_and_a_grammar_that_forces_go_together();
  what_is_forced_rides_without_a_drafter();
  all_generations_of_a_step_take_their_turn_together();
  an_output_is_complete_with_its_last_token();
  the_end_comes_where_the_rule_allows_it();
  a_full_cache_ends_it_at_the_same_token();
  an_output_that_was_cut_short_goes_on_under_the_same_constraint();
  forks_and_rollbacks_go_on_in_the_middle();
  a_fork_of_a_running_generation_goes_on_with_its_output();
  other_tokens_and_other_constraints_close_an_output();
  a_cancelled_generation_leaves_its_output_open();
  a_failure_is_its_own_generations();
  a_draft_that_cannot_grow_fails_its_generation();
  a_forward_that_fails_loses_nothing();
  small_forwards_change_nothing();
}
