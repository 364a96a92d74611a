// select: scores, how many forwards they cost, and that the branch is left alone.
#include <cmath>

#include "engine/rig.h"

using namespace agentkv;
using namespace agentkv::testing;

namespace {

std::vector<double> expected_scores(const Rig& rig, const Tokens& history, const std::vector<Tokens>& choices) {
  std::vector<double> scores;
  for (const Tokens& choice : choices) {
    Tokens now = history;
    double score = 0;
    for (const Token token : choice) {
      const auto row = rig.row(now);
      double total = 0;
      for (const float x : row) total += std::exp(static_cast<double>(x));
      score += row[static_cast<std::size_t>(token)] - std::log(total);
      now.push_back(token);
    }
    scores.push_back(score);
  }
  return scores;
}

void check_scores(const Rig& rig, const std::vector<double>& scores, const Tokens& history,
                  const std::vector<Tokens>& choices) {
  const auto expected = expected_scores(rig, history, choices);
  CHECK_EQ(scores.size(), expected.size());
  for (std::size_t i = 0; i < scores.size(); ++i) CHECK(std::abs(scores[i] - expected[i]) < 1e-4);
}

const std::vector<Tokens> kChoices{{5, 6, 7}, {5}, {8, 9}, {5, 6, 2}, {0}};

void scores_are_sums_of_log_probabilities() {
  Rig rig;
  const Tokens prompt = prompt_tokens(10);
  const BranchId branch = rig.prompt(prompt);
  const int calls = rig.program->calls;
  const Finished f = rig.run(rig.engine.select(branch, kChoices));
  check_scores(rig, f.scores, prompt, kChoices);
  CHECK_EQ(rig.program->calls - calls, 1);
  CHECK(rig.log(branch) == prompt);
  CHECK_EQ(rig.cells->used(), 10);
  CHECK(rig.generate(branch, 4).tokens == rig.expected(prompt, 4));
}

void a_pending_token_costs_no_second_forward() {
  Rig rig;
  const BranchId branch = rig.prompt(prompt_tokens(10));
  rig.generate(branch, 2);
  const Tokens history = rig.log(branch);
  const int calls = rig.program->calls;
  check_scores(rig, rig.run(rig.engine.select(branch, kChoices)).scores, history, kChoices);
  CHECK_EQ(rig.program->calls - calls, 1);
  CHECK(rig.log(branch) == history);
  const int after = rig.program->calls;
  rig.run(rig.engine.logits(branch));  // the row that scored the first tokens was kept
  CHECK_EQ(rig.program->calls, after);

  rig.engine.rollback(branch, 8);
  check_scores(rig, rig.run(rig.engine.select(branch, kChoices)).scores, prompt_tokens(8), kChoices);
}

void single_tokens_are_scored_without_a_forward() {
  Rig rig;
  const BranchId branch = rig.prompt(prompt_tokens(4));
  const int calls = rig.program->calls;
  check_scores(rig, rig.run(rig.engine.select(branch, {{3}, {4}})).scores, prompt_tokens(4), {{3}, {4}});
  CHECK_EQ(rig.program->calls, calls);
}

void branches_that_fill_every_sequence_leave_select_working() {
  RigOptions options;
  options.max_sequences = 4;
  options.config.max_branches = 4;
  Rig rig(options);
  const BranchId branch = rig.prompt(prompt_tokens(10));
  rig.generate(branch, 1);
  const Tokens history = rig.log(branch);
  for (int i = 0; i < 3; ++i) rig.engine.fork(branch);
  check_scores(rig, rig.run(rig.engine.select(branch, kChoices)).scores, history, kChoices);
  CHECK(rig.log(branch) == history);
}

void selects_never_take_a_branch_from_the_user() {
  RigOptions options;
  options.max_sequences = 4;
  options.config.max_branches = 4;
  options.config.max_batch_tokens = 2;  // one choice a step
  Rig rig(options);
  const BranchId branch = rig.prompt(prompt_tokens(10));
  const JobId job = rig.engine.select(branch, kChoices);
  rig.step();
  CHECK(!rig.finished.contains(job));
  for (int i = 0; i < 3; ++i) rig.engine.fork(branch);
  check_scores(rig, rig.run(job).scores, prompt_tokens(10), kChoices);
}

void long_choices_are_scored_in_pieces() {
  RigOptions options;
  options.info = {.vocab_size = 48, .max_tokens = 7, .max_logits = 2};
  Rig rig(options);
  const BranchId branch = rig.prompt(prompt_tokens(5));
  const std::vector<Tokens> choices{prompt_tokens(30, 2), prompt_tokens(11, 3), {4}};
  const BranchId other = rig.prompt(prompt_tokens(6, 7));
  const JobId generation = rig.engine.generate(other, {.max_tokens = 5, .ignore_eos = true});
  check_scores(rig, rig.run(rig.engine.select(branch, choices)).scores, prompt_tokens(5), choices);
  CHECK_EQ(rig.run(generation).tokens.size(), std::size_t{5});
}

void a_full_cache_takes_turns_and_then_refuses() {
  RigOptions options;
  options.capacity = 14;
  Rig rig(options);
  const BranchId branch = rig.prompt(prompt_tokens(10));
  check_scores(rig, rig.run(rig.engine.select(branch, kChoices)).scores, prompt_tokens(10), kChoices);
  const Finished f = rig.run(rig.engine.select(branch, {{2, 3}, prompt_tokens(6, 2)}));
  CHECK_EQ(f.error->kind, ErrorKind::ContextFull);
  CHECK(f.error->message.find("5 more cells") != std::string::npos);
  CHECK_EQ(rig.cells->used(), 10);
  CHECK(rig.generate(branch, 2).tokens == rig.expected(prompt_tokens(10), 2));
}

void failures_and_cancellation_leave_the_branch() {
  Rig rig;
  const BranchId branch = rig.prompt(prompt_tokens(10));
  rig.generate(branch, 2);
  const Tokens history = rig.log(branch);
  rig.program->fault = [](std::span<const std::int64_t>) { throw ForwardFailed("no"); };
  CHECK(rig.run(rig.engine.select(branch, kChoices)).error->kind == ErrorKind::StepFailed);
  CHECK(rig.log(branch) == history);
  rig.program->fault = [](std::span<const std::int64_t> tokens) {  // only one choice's rows
    if (std::find(tokens.begin(), tokens.end(), 8) != tokens.end()) throw ForwardFailed("no 8");
  };
  const Finished f = rig.run(rig.engine.select(branch, kChoices));
  CHECK_EQ(f.error->message, "no 8");
  CHECK(rig.log(branch) == history);
  rig.program->fault = nullptr;
  const JobId job = rig.engine.select(branch, kChoices);
  rig.engine.cancel(job);
  CHECK_EQ(std::string(rig.run(job).finish_reason), "cancelled");
  check_scores(rig, rig.run(rig.engine.select(branch, kChoices)).scores, history, kChoices);
}

void choices_must_be_choices() {
  Rig rig;
  const BranchId branch = rig.prompt({2, 3});
  CHECK_THROWS(rig.engine.select(branch, {}), InvalidChoices, "at least one");
  CHECK_THROWS(rig.engine.select(branch, {{2}, {}}), InvalidChoices, "choice 1");
  CHECK_THROWS(rig.engine.select(branch, {{2}, {99}}), InvalidToken, "99");
  CHECK_THROWS(rig.engine.select(rig.engine.create().first, {{2}}), EmptyBranch);
}

}  // namespace

int main() {
  scores_are_sums_of_log_probabilities();
  a_pending_token_costs_no_second_forward();
  single_tokens_are_scored_without_a_forward();
  branches_that_fill_every_sequence_leave_select_working();
  selects_never_take_a_branch_from_the_user();
  long_choices_are_scored_in_pieces();
  a_full_cache_takes_turns_and_then_refuses();
  failures_and_cancellation_leave_the_branch();
  choices_must_be_choices();
}
