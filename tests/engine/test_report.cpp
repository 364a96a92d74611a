// What a step and a job tell of themselves: whose rows rode, how long it took, and digests of rows of logits.
#include <cstring>

#include "engine/digest.h"
#include "engine/rig.h"

using namespace agentkv;
using namespace agentkv::testing;

namespace {

void every_bit_of_a_row_counts() {
  std::vector<float> row(1000);
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(i) * 0.37f - 11.0f;
  std::set<std::uint64_t> seen{digest_of(row)};
  CHECK_EQ(digest_of(row), digest_of(row));
  std::size_t different = 1;
  for (std::size_t i = 0; i < row.size(); i += 7) {
    for (int bit = 0; bit < 32; ++bit) {
      std::uint32_t word;
      std::memcpy(&word, &row[i], sizeof word);
      const std::uint32_t flipped = word ^ (1u << bit);
      std::memcpy(&row[i], &flipped, sizeof word);
      seen.insert(digest_of(row));
      ++different;
      std::memcpy(&row[i], &word, sizeof word);
    }
  }
  CHECK_EQ(seen.size(), different);
}

void rows_of_different_lengths_differ() {
  const std::vector<float> zeros(100);
  std::set<std::uint64_t> seen;
  for (std::size_t n = 0; n <= zeros.size(); ++n) seen.insert(digest_of(std::span(zeros).first(n)));
  CHECK_EQ(seen.size(), zeros.size() + 1);
}

void a_generation_digests_the_rows_that_it_draws_from() {
  Rig rig;
  const Tokens prompt = prompt_tokens(9);
  const BranchId branch = rig.prompt(prompt);
  CHECK(rig.generate(rig.engine.fork(branch), 4).digests.empty());
  rig.engine.set_digests(true);
  const Finished made = rig.generate(branch, 6);
  CHECK_EQ(made.digests.size(), made.tokens.size());
  Tokens history = prompt;
  for (std::size_t i = 0; i < made.tokens.size(); ++i) {
    CHECK_EQ(made.digests[i], digest_of(rig.row(history)));
    history.push_back(made.tokens[i]);
  }
}

void shares_say_whose_rows_a_step_merged() {
  Rig rig;
  const BranchId one = rig.prompt(prompt_tokens(5, 1)), two = rig.engine.create().first;
  rig.engine.generate(one, {.max_tokens = 20, .ignore_eos = true});
  const JobId job = rig.engine.extend(two, prompt_tokens(40, 2));
  std::int32_t prefill = 0, decode = 0;
  while (!rig.finished.contains(job)) {
    const StepReport report = rig.step();
    std::int32_t rows = 0;
    for (const Share& share : report.shares) {
      CHECK_EQ(share.branch, share.kind == Share::Prefill ? two : one);
      (share.kind == Share::Prefill ? prefill : decode) += share.rows;
      rows += share.rows;
    }
    CHECK_EQ(rows, report.rows);
    CHECK(report.seconds >= report.forward_seconds + report.draft_seconds);
  }
  CHECK_EQ(prefill, 40);
  CHECK(decode >= 1);
}

void what_was_let_go_is_told_as_fed_again() {
  Rig rig;
  const BranchId branch = rig.prompt(prompt_tokens(20));
  rig.engine.drop_cells_from(branch, 4);
  rig.engine.generate(branch, {.max_tokens = 2, .ignore_eos = true});
  std::int32_t again = 0;
  for (StepReport report = rig.step(); !report.idle; report = rig.step()) {
    for (const Share& share : report.shares) again += share.kind == Share::FedAgain ? share.rows : 0;
  }
  CHECK_EQ(static_cast<std::uint64_t>(again), rig.engine.stats().refed);
  CHECK(again > 0);
}

void jobs_say_how_long_they_took() {
  Rig rig;
  const BranchId branch = rig.prompt(prompt_tokens(5));
  const Finished made = rig.generate(branch, 5);
  CHECK(made.seconds >= made.first_token_seconds);
  CHECK(made.first_token_seconds > 0);
  const Finished logits = rig.run(rig.engine.logits(branch));
  CHECK(logits.seconds > 0);
  CHECK_EQ(logits.first_token_seconds, 0.0);
}

}  // namespace

int main() {
  every_bit_of_a_row_counts();
  rows_of_different_lengths_differ();
  a_generation_digests_the_rows_that_it_draws_from();
  shares_say_whose_rows_a_step_merged();
  what_was_let_go_is_told_as_fed_again();
  jobs_say_how_long_they_took();
}
