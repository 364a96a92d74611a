// Which rows ride together, and that company changes nothing.
#include <numeric>

#include "engine/rig.h"

using namespace agentkv;
using namespace agentkv::testing;

namespace {

void generations_share_their_forwards() {
  Rig rig;
  std::vector<Tokens> prompts;
  std::vector<BranchId> branches;
  for (std::uint64_t i = 0; i < 8; ++i) {
    prompts.push_back(prompt_tokens(5 + static_cast<int>(i), i));
    branches.push_back(rig.prompt(prompts.back()));
  }
  const int before = rig.program->calls;
  std::vector<JobId> jobs;
  for (const BranchId b : branches) jobs.push_back(rig.engine.generate(b, {.max_tokens = 64, .ignore_eos = true}));
  rig.drain();
  CHECK(rig.program->calls - before <= 66);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    CHECK_EQ(rig.finished[jobs[i]].tokens.size(), std::size_t{64});
    Tokens history = prompts[i];
    for (const Token token : rig.finished[jobs[i]].tokens) {
      const auto row = rig.row(history);
      CHECK_EQ(std::max_element(row.begin(), row.end()) - row.begin(), token);
      history.push_back(token);
    }
  }
  CHECK_EQ(rig.engine.stats().generated, std::uint64_t{8 * 64});
  CHECK_EQ(rig.engine.stats().tokens - rig.engine.stats().prefilled, std::uint64_t{8 * 63});
}

void forks_generate_together_from_one_stored_row() {
  Rig rig;
  const BranchId trunk = rig.prompt(prompt_tokens(20));
  std::vector<JobId> jobs;
  const int before = rig.program->calls;
  for (int i = 0; i < 12; ++i) {
    jobs.push_back(rig.engine.generate(
        rig.engine.fork(trunk), {.max_tokens = 10, .sampling = {.temperature = 1}, .seed = 3, .ignore_eos = true}));
  }
  rig.drain();
  CHECK_EQ(rig.program->calls - before, 9);
  std::set<Tokens> different;
  for (const JobId job : jobs) different.insert(rig.finished[job].tokens);
  CHECK_EQ(different.size(), std::size_t{12});
  CHECK_EQ(rig.cells->used(), 20 + 12 * 9);
}

void prefill_is_cut_to_the_batch() {
  Rig rig;  // 32 rows a step
  const Tokens prompt = prompt_tokens(100);
  const BranchId branch = rig.engine.create().first;
  const JobId job = rig.engine.extend(branch, prompt);
  std::vector<int> rows;
  while (!rig.finished.contains(job)) rows.push_back(rig.step().prefill_rows);
  CHECK((rows == std::vector<int>{32, 32, 32, 4}));
  CHECK(rig.generate(branch, 3).tokens == rig.expected(prompt, 3));
}

void prefill_comes_in_the_order_it_was_asked_for() {
  Rig rig;
  const BranchId a = rig.engine.create().first, b = rig.engine.create().first;
  const JobId first = rig.engine.extend(a, prompt_tokens(40, 1));
  const JobId second = rig.engine.extend(b, prompt_tokens(30, 2));
  const StepReport one = rig.step();
  CHECK_EQ(one.prefill_rows, 32);
  CHECK_EQ(one.branches, 1);
  const StepReport two = rig.step();  // the last 8 of the first, and 24 of the second
  CHECK_EQ(two.prefill_rows, 32);
  CHECK_EQ(two.branches, 2);
  CHECK(rig.finished.contains(first) && !rig.finished.contains(second));
  CHECK_EQ(rig.step().prefill_rows, 6);
  CHECK(rig.finished.contains(second));
}

void decode_rows_ride_while_others_prefill() {
  Rig rig;
  const Tokens prompt = prompt_tokens(6);
  const BranchId a = rig.prompt(prompt);
  const JobId generation = rig.engine.generate(a, {.max_tokens = 5, .ignore_eos = true});
  const BranchId b = rig.engine.create().first;
  const Tokens long_prompt = prompt_tokens(90, 2);
  const JobId prefill = rig.engine.extend(b, long_prompt);
  for (int i = 0; i < 2; ++i) {
    const StepReport report = rig.step();
    CHECK_EQ(report.decode_rows, 1);
    CHECK_EQ(report.prefill_rows, 31);
    CHECK_EQ(report.forwards, 1);
    CHECK_EQ(report.branches, 2);
  }
  rig.drain();
  CHECK(rig.finished[generation].tokens == [&] {
    Rig alone;
    return alone.run(alone.engine.generate(alone.prompt(prompt), {.max_tokens = 5, .ignore_eos = true})).tokens;
  }());
  CHECK(!rig.finished[prefill].error);
  CHECK(rig.log(b) == long_prompt);
}

// Loops that users write, one token per await, must not queue behind a prompt.
void short_extends_ride_beside_a_long_prefill() {
  Rig rig;
  const BranchId loop = rig.prompt({2, 3});
  rig.engine.extend(rig.engine.create().first, prompt_tokens(90, 2));
  const JobId token = rig.engine.extend(loop, Tokens{4});
  const StepReport report = rig.step();
  CHECK(rig.finished.contains(token));
  CHECK_EQ(report.rows, 32);
}

void steps_larger_than_the_program_are_split() {
  RigOptions options;
  options.info = {.vocab_size = 48, .max_tokens = 8, .max_logits = 3};
  options.config.max_batch_tokens = 100;
  Rig rig(options);
  std::vector<BranchId> branches;
  std::vector<JobId> jobs;
  for (std::uint64_t i = 0; i < 10; ++i) branches.push_back(rig.prompt(prompt_tokens(20, i)));
  for (const BranchId b : branches) jobs.push_back(rig.engine.generate(b, {.max_tokens = 6, .ignore_eos = true}));
  const StepReport report = rig.step();
  CHECK_EQ(report.decode_rows, 10);
  CHECK_EQ(report.forwards, 4);  // three logits rows each
  rig.drain();
  for (std::uint64_t i = 0; i < 10; ++i) {
    Rig alone;
    const BranchId b = alone.prompt(prompt_tokens(20, i));
    CHECK(rig.finished[jobs[i]].tokens ==
          alone.run(alone.engine.generate(b, {.max_tokens = 6, .ignore_eos = true})).tokens);
  }
}

void chunks_and_company_change_no_token() {
  const Tokens prompt = prompt_tokens(50, 9);
  std::set<Tokens> outputs;
  for (const int chunk : {1, 2, 3, 7, 16, 50}) {
    RigOptions options;
    options.config.max_batch_tokens = chunk;
    Rig rig(options);
    const BranchId noise = rig.prompt(prompt_tokens(3, 5));
    rig.engine.generate(noise, {.max_tokens = 30, .ignore_eos = true});
    const BranchId branch = rig.engine.create().first;
    rig.engine.extend(branch, prompt);
    rig.drain();
    outputs.insert(rig.generate(branch, 10).tokens);
  }
  CHECK_EQ(outputs.size(), std::size_t{1});
}

void a_generation_waits_for_its_reader() {
  Rig rig;
  const BranchId a = rig.prompt(prompt_tokens(4, 1)), b = rig.prompt(prompt_tokens(4, 2));
  const JobId slow = rig.engine.generate(a, {.max_tokens = 6, .ignore_eos = true, .emit = true, .emit_ahead = 2});
  const JobId fast = rig.engine.generate(b, {.max_tokens = 6, .ignore_eos = true});
  while (!rig.finished.contains(fast)) rig.step();
  CHECK(rig.step().idle);
  CHECK_EQ(rig.emitted.size(), std::size_t{2});
  rig.engine.ack(slow, 1);
  rig.drain();
  CHECK_EQ(rig.emitted.size(), std::size_t{3});
  rig.engine.ack(slow, 3);
  CHECK_EQ(rig.run(slow).tokens.size(), std::size_t{6});
  rig.engine.ack(slow, 9);  // it has ended: nothing happens
}

void stats_add_up() {
  Rig rig;
  const BranchId branch = rig.prompt(prompt_tokens(40));
  rig.run(rig.engine.generate(branch, {.max_tokens = 5, .ignore_eos = true}));
  const Stats stats = rig.engine.stats();
  CHECK_EQ(stats.forwards, static_cast<std::uint64_t>(rig.program->calls));
  CHECK_EQ(stats.tokens, std::accumulate(rig.program->rows.begin(), rig.program->rows.end(), std::uint64_t{0}));
  CHECK_EQ(stats.prefilled, std::uint64_t{40});
  CHECK_EQ(stats.tokens, std::uint64_t{40 + 4});
  CHECK_EQ(stats.generated, std::uint64_t{5});
  CHECK_EQ(stats.rows_per_step[32], std::uint64_t{1});
  CHECK_EQ(stats.rows_per_step[8], std::uint64_t{1});
  CHECK_EQ(stats.rows_per_step[1], std::uint64_t{4});
  CHECK_EQ(stats.branches, std::size_t{1});
  CHECK_EQ(stats.cells_used, Cell{40 + 4});
  CHECK_EQ(stats.capacity, rig.options.capacity);
  CHECK(stats.forward_seconds > 0 && stats.overhead_seconds > 0);
  CHECK(rig.step().idle);
}

}  // namespace

int main() {
  generations_share_their_forwards();
  forks_generate_together_from_one_stored_row();
  prefill_is_cut_to_the_batch();
  prefill_comes_in_the_order_it_was_asked_for();
  decode_rows_ride_while_others_prefill();
  short_extends_ride_beside_a_long_prefill();
  steps_larger_than_the_program_are_split();
  chunks_and_company_change_no_token();
  a_generation_waits_for_its_reader();
  stats_add_up();
}
