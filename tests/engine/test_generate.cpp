// One generation at a time: what is sampled, what ends it, what is shown.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/rig.h"

using namespace agentkv;
using namespace agentkv::testing;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A model that continues every history with `script`, by position.
void follow(Rig& rig, const Tokens& script, std::size_t from) {
  rig.program->model = [script, from](std::span<const Token> history, std::span<float> row) {
    std::fill(row.begin(), row.end(), -3.0f);
    if (history.size() >= from && history.size() - from < script.size()) {
      row[static_cast<std::size_t>(script[history.size() - from])] = 3.0f;
    } else {
      row[2] = 3.0f;
    }
  };
}

void greedy_output_is_that_of_a_model_without_cache() {
  Rig rig;
  const Tokens prompt = prompt_tokens(10);
  const BranchId branch = rig.prompt(prompt);
  const int before = rig.program->calls;
  const Finished f = rig.generate(branch, 20);
  const Tokens expected = rig.expected(prompt, 20);
  CHECK(f.tokens == expected);
  CHECK_EQ(std::string(f.finish_reason), expected.back() == 0 ? "eos" : "length");
  CHECK(rig.log(branch) == joined(prompt, f.tokens));
  CHECK_EQ(f.prompt_tokens, 10);
  CHECK_EQ(f.logprobs.size(), f.tokens.size());
  CHECK_EQ(rig.engine.branch(branch).n_cached, static_cast<Pos>(9 + f.tokens.size()));
  CHECK_EQ(rig.program->calls - before, static_cast<int>(f.tokens.size()) - 1);  // the first came from the stored row
}

void logprobs_are_the_models_own() {
  Rig rig;
  const Tokens prompt = prompt_tokens(5);
  const BranchId branch = rig.prompt(prompt);
  const Sampling sampling{.temperature = 1.5f, .top_k = 10, .repetition_penalty = 1.3f};
  const Finished f = rig.run(rig.engine.generate(branch, {.max_tokens = 8, .sampling = sampling, .ignore_eos = true}));
  Tokens history = prompt;
  for (std::size_t i = 0; i < f.tokens.size(); ++i) {
    const auto row = rig.row(history);
    double total = 0;
    for (const float x : row) total += std::exp(static_cast<double>(x));
    CHECK(std::abs(f.logprobs[i] - (row[static_cast<std::size_t>(f.tokens[i])] - std::log(total))) < 1e-5);
    history.push_back(f.tokens[i]);
  }
}

void the_likeliest_tokens_are_told_on_request() {
  for (const std::int32_t n : {1, 5, 20}) {
    Rig rig({.info = {.vocab_size = 12, .max_tokens = 64, .max_logits = 16}});
    const Tokens prompt = prompt_tokens(5, 1, 12);
    const BranchId branch = rig.prompt(prompt);
    const Sampling sampling{.temperature = 1.5f, .presence_penalty = 1, .logit_bias = {{3, 2}}};
    const GenerateOptions options{
        .max_tokens = 8, .sampling = sampling, .ignore_eos = true, .emit = true, .top_logprobs = n};
    const Finished f = rig.run(rig.engine.generate(branch, options));
    CHECK_EQ(f.top_logprobs.size(), f.tokens.size());
    CHECK_EQ(rig.emitted.size(), f.tokens.size());
    Tokens history = prompt;
    for (std::size_t i = 0; i < f.tokens.size(); ++i) {
      const auto row = rig.row(history);
      const auto& likely = f.top_logprobs[i];
      CHECK_EQ(likely.size(), static_cast<std::size_t>(std::min(n, 12)));
      for (std::size_t rank = 0; rank < likely.size(); ++rank) {
        const auto [token, logprob] = likely[rank];
        CHECK(std::abs(logprob - log_probability(row, token)) < 1e-6);
        if (token == f.tokens[i]) CHECK_EQ(logprob, f.logprobs[i]);
        if (rank > 0) CHECK(likely[rank - 1].logprob >= logprob);
        CHECK_EQ(rig.emitted[i].top_logprobs[rank].token, token);
        CHECK_EQ(rig.emitted[i].top_logprobs[rank].logprob, logprob);
      }
      const float best = *std::max_element(row.begin(), row.end());
      CHECK_EQ(row[static_cast<std::size_t>(likely.front().token)], best);
      history.push_back(f.tokens[i]);
    }
  }
  Rig rig;
  const Finished f = rig.generate(rig.prompt(prompt_tokens(5)), 4);
  CHECK(f.top_logprobs.empty());
}

void a_generation_goes_on_where_the_last_one_ended() {
  Rig rig;
  const Tokens prompt = prompt_tokens(6, 4);
  const Tokens expected = rig.expected(prompt, 12);
  CHECK_EQ(expected.size(), std::size_t{12});
  const BranchId branch = rig.prompt(prompt);
  Tokens tokens;
  for (const int n : {1, 1, 3, 7}) tokens = joined(tokens, rig.generate(branch, n).tokens);
  CHECK(tokens == expected);
  const Tokens more = prompt_tokens(3, 8);
  CHECK(!rig.run(rig.engine.extend(branch, more)).error);  // after a sampled token that the cache lacks
  CHECK(rig.generate(branch, 5).tokens == rig.expected(joined(joined(prompt, expected), more), 5));
}

void eos_ends_and_is_kept_out_of_the_text() {
  Rig rig;
  follow(rig, {7, 1, 8, 0, 9}, 2);
  const BranchId branch = rig.prompt({5, 6});
  const Finished f = rig.run(rig.engine.generate(branch, {.max_tokens = 50, .emit = true}));
  CHECK_EQ(std::string(f.finish_reason), "eos");
  CHECK((f.tokens == Tokens{7, 1, 8, 0}));
  CHECK_EQ(f.text, "HI");  // 1 and 0 are special
  CHECK((rig.log(branch) == Tokens{5, 6, 7, 1, 8, 0}));
  CHECK_EQ(rig.emitted.size(), std::size_t{4});

  rig.engine.rollback(branch, 2);
  const Finished on = rig.run(rig.engine.generate(branch, {.max_tokens = 5, .ignore_eos = true}));
  CHECK((on.tokens == Tokens{7, 1, 8, 0, 9}));
  CHECK_EQ(on.text, "HIJ");
  CHECK_EQ(std::string(on.finish_reason), "length");
}

struct StopCase {
  std::vector<std::string> stop;
  Tokens tokens;
  std::string text;
  const char* reason;
};

// Tokens 5, 6, 7, 8, 9 are "ab", "cX", "Yd", "e", "\xe2\x82": the stop strings lie across them.
void stop_strings_are_found_across_tokens() {
  RigOptions options;
  options.token_bytes = {"", "<s>", "_", "?", "!", "ab", "cX", "Yd", "e", "\xe2\x82"};
  options.info.vocab_size = 10;
  const std::vector<StopCase> cases{
      {{"XY"}, {5, 6, 7}, "abc", "stop"},
      {{"bcXYde"}, {5, 6, 7, 8}, "a", "stop"},
      {{"XYe", "d"}, {5, 6, 7}, "abcXY", "stop"},
      {{"XYe", "XYq"}, {5, 6, 7, 8, 9}, "abcXYde\xe2\x82", "length"},
      {{"b"}, {5}, "a", "stop"},
      {{"\xe2"}, {5, 6, 7, 8, 9}, "abcXYde", "stop"},
      {{"\x82\xac"}, {5, 6, 7, 8, 9}, "abcXYde\xe2\x82", "length"},
      {{"abcXYde\xe2\x82"}, {5, 6, 7, 8, 9}, "", "stop"},
      {{}, {5, 6, 7, 8, 9}, "abcXYde\xe2\x82", "length"},
  };
  for (const StopCase& c : cases) {
    Rig rig(options);
    follow(rig, {5, 6, 7, 8, 9}, 2);
    const BranchId branch = rig.prompt({3, 4});
    const Finished f = rig.run(rig.engine.generate(branch, {.max_tokens = 5, .stop = c.stop, .emit = true}));
    CHECK_EQ(std::string(f.finish_reason), c.reason);
    CHECK(f.tokens == c.tokens);
    CHECK_EQ(f.text, c.text);
    CHECK(rig.log(branch) == joined({3, 4}, c.tokens));
    std::string shown;
    for (const Emitted& e : rig.emitted) {
      shown += e.text;
      CHECK_EQ(c.text.compare(0, shown.size(), shown), 0);  // nothing was shown that had to be taken back
    }
    CHECK_EQ(shown, c.text);
    CHECK_EQ(rig.emitted.size(), c.tokens.size());
  }
}

// Tokens 0 and 1 are special, "</s>" and "<s>"; 0 ends a generation.
void stop_strings_match_special_tokens() {
  RigOptions options;
  options.token_bytes = {"</s>", "<s>", "_", "?", "!", "ab", "c", "\n"};
  options.info.vocab_size = 8;
  struct Case {
    std::vector<std::string> stop;
    Tokens tokens;
    std::string text;
    const char* reason;
  };
  const std::vector<Case> cases{
      {{"<s>"}, {5, 7, 1}, "ab\n", "stop"},
      {{"\n<s>"}, {5, 7, 1}, "ab", "stop"},
      {{"<s>c"}, {5, 7, 1, 6}, "ab\n", "stop"},
      {{"</s>"}, {5, 7, 1, 6, 0}, "ab\nc", "eos"},   // which ends it anyway
      {{"c</s>"}, {5, 7, 1, 6, 0}, "ab\n", "stop"},  // and takes text with it
      {{"s>"}, {5, 7, 1, 6, 0}, "ab\nc", "eos"},
  };
  for (const Case& c : cases) {
    Rig rig(options);
    follow(rig, {5, 7, 1, 6, 0}, 2);
    const Finished f =
        rig.run(rig.engine.generate(rig.prompt({3, 4}), {.max_tokens = 9, .stop = c.stop, .emit = true}));
    CHECK_EQ(std::string(f.finish_reason), c.reason);
    CHECK(f.tokens == c.tokens);
    CHECK_EQ(f.text, c.text);
    std::string shown;
    for (const Emitted& e : rig.emitted) shown += e.text;
    CHECK_EQ(shown, c.text);
  }
}

void sampling_is_keyed_by_seed_stream_and_position() {
  const Sampling sampling{.temperature = 1};
  const auto sample = [&](Rig& rig, BranchId branch, std::uint64_t seed) {
    return rig
        .run(rig.engine.generate(branch, {.max_tokens = 12, .sampling = sampling, .seed = seed, .ignore_eos = true}))
        .tokens;
  };
  Rig rig;
  const Tokens prompt = prompt_tokens(4);
  const BranchId a = rig.prompt(prompt);
  const BranchId child = rig.engine.fork(a);
  const BranchId sibling = rig.engine.fork(a);
  const Tokens first = sample(rig, a, 1);
  const Tokens of_child = sample(rig, child, 1);
  CHECK(first != of_child);
  CHECK(of_child != sample(rig, sibling, 1));
  rig.engine.rollback(a, 4);
  CHECK(sample(rig, a, 1) == first);  // a replay from the same place
  rig.engine.rollback(a, 9);
  CHECK((Tokens(first.begin() + 5, first.end()) == [&] {
    return rig.run(rig.engine.generate(a, {.max_tokens = 7, .sampling = sampling, .seed = 1, .ignore_eos = true}))
        .tokens;
  }()));
  rig.engine.rollback(a, 4);
  CHECK(sample(rig, a, 2) != first);

  Rig again;
  const BranchId b = again.prompt(prompt);
  const BranchId b_child = again.engine.fork(b);
  CHECK(sample(again, b_child, 1) == of_child);  // in another order, in another engine
  CHECK(sample(again, b, 1) == first);
  CHECK_EQ(again.engine.branch(b).rng_stream, std::uint64_t{0});
}

void penalties_look_at_the_whole_log() {
  Rig rig;
  rig.program->model = [](std::span<const Token>, std::span<float> row) {  // prefers 9, then 8, then 7
    for (std::size_t v = 0; v < row.size(); ++v) row[v] = v < 10 && v > 1 ? static_cast<float>(v) : -5.0f;
  };
  const BranchId branch = rig.prompt({9, 3});
  const Finished f = rig.run(rig.engine.generate(branch, {.max_tokens = 3, .sampling = {.repetition_penalty = 1.5f}}));
  CHECK((f.tokens == Tokens{8, 7, 6}));  // 9 / 1.5 = 6 ties with 6, which is the lower id
}

void what_it_made_before_counts() {
  Rig rig;
  const Tokens prompt = prompt_tokens(6, 4);
  GenerateOptions options{.sampling = {.presence_penalty = 0.7f, .frequency_penalty = 0.9f}, .ignore_eos = true};
  const auto said = [&](const Tokens& before, std::int32_t count, std::int32_t made) {
    const BranchId branch = rig.prompt(before);
    options.max_tokens = count;
    options.made = made;
    const Tokens tokens = rig.run(rig.engine.generate(branch, options)).tokens;
    rig.engine.close(branch);
    return tokens;
  };
  const Tokens whole = said(prompt, 30, 0);
  bool differs = false;
  for (std::int32_t made = 0; made < 30; ++made) {
    const Tokens rest(whole.begin() + made, whole.end());
    const Tokens before = joined(prompt, Tokens(whole.begin(), whole.begin() + made));
    CHECK(said(before, 30 - made, made) == rest);
    differs |= said(before, 30 - made, 0) != rest;
  }
  CHECK(differs);
}

void refusals_come_before_any_change() {
  Rig rig;
  const BranchId empty = rig.engine.create().first;
  CHECK_THROWS(rig.engine.generate(empty, {.max_tokens = 1}), EmptyBranch, "no token", "extend it first");
  CHECK_THROWS(rig.engine.logits(empty), EmptyBranch);
  const BranchId branch = rig.prompt({2, 3});
  CHECK_THROWS(rig.engine.generate(branch, {.max_tokens = 0}), InvalidSampling, "max_tokens", "0", "1");
  CHECK_THROWS(rig.engine.generate(branch, {.max_tokens = 1, .stop = {""}}), InvalidSampling, "stop string");
  CHECK_THROWS(rig.engine.generate(branch, {.max_tokens = 1, .sampling = {.top_p = 0}}), InvalidSampling, "top_p");
  const Sampling foreign{.logit_bias = {{48, 1}}};
  CHECK_THROWS(rig.engine.generate(branch, {.max_tokens = 1, .sampling = foreign}), InvalidSampling, "token id 48");
  for (const std::int32_t n : {-1, 21}) {
    const GenerateOptions options{.max_tokens = 1, .top_logprobs = n};
    CHECK_THROWS(rig.engine.generate(branch, options), InvalidSampling, "top_logprobs", "0 to 20");
  }
  for (const std::int32_t made : {-1, 3}) {
    GenerateOptions options{.max_tokens = 1, .made = made};
    CHECK_THROWS(rig.engine.generate(branch, options), InvalidSampling, "made is", "2 tokens");
    options = {.max_tokens = 1, .output_made = made};
    CHECK_THROWS(rig.engine.generate(branch, options), InvalidSampling, "output_made is", "2 tokens");
  }
  CHECK_THROWS(rig.engine.extend(branch, Tokens{3, 48}), InvalidToken, "48", "47", "index 1");
  CHECK_THROWS(rig.engine.extend(branch, Tokens{-1}), InvalidToken, "-1");
  CHECK_THROWS(rig.engine.create(Tokens{50}), InvalidToken, "50");
  CHECK(rig.engine.step().idle);
  CHECK((rig.log(branch) == Tokens{2, 3}));
  CHECK_EQ(rig.generate(branch, 1).tokens.size(), std::size_t{1});
}

void a_row_that_is_no_distribution_fails_its_branch_alone() {
  Rig rig;
  const BranchId good = rig.prompt({2, 3, 4});
  const BranchId bad = rig.prompt({5, 6, 7});
  rig.program->model = [](std::span<const Token> history, std::span<float> row) {
    hashed_logits(history, row);
    if (history[0] == 5 && history.size() == 6) row[4] = kInfinity;
  };
  const JobId a = rig.engine.generate(good, {.max_tokens = 6, .ignore_eos = true});
  const JobId b = rig.engine.generate(bad, {.max_tokens = 6, .ignore_eos = true});
  CHECK(!rig.run(a).error);
  const Finished f = rig.run(b);
  CHECK_EQ(f.error->kind, ErrorKind::StepFailed);
  CHECK_EQ(f.tokens.size(), std::size_t{3});
  CHECK(rig.log(bad) == joined({5, 6, 7}, f.tokens));
}

}  // namespace

void a_generation_pauses_where_it_is_told_to() {
  Rig rig;
  const Tokens prompt = prompt_tokens(6);
  const BranchId branch = rig.prompt(prompt), alike = rig.engine.fork(branch);
  const Tokens plain = rig.generate(alike, 12).tokens;
  const JobId job = rig.engine.generate(branch, {.max_tokens = 12, .wait_for_room = true, .pauses = {0, 3, 5}});
  for (const std::size_t made : {0u, 3u, 5u}) {
    while (rig.step().out_of_room != std::vector{job}) CHECK(!rig.finished.contains(job));
    CHECK_EQ(rig.log(branch).size(), prompt.size() + made);
    rig.step();  // it waits
    CHECK_EQ(rig.log(branch).size(), prompt.size() + made);
    rig.engine.resume(job, true);
  }
  CHECK(rig.run(job).tokens == plain);
  for (const auto& [waits, pauses] : {std::pair{false, std::vector{1}}, {true, {2, 1}}, {true, {-1}}}) {
    const GenerateOptions options{.max_tokens = 2, .wait_for_room = waits, .pauses = pauses};
    CHECK_THROWS(rig.engine.generate(branch, options), InvalidSampling, "pauses");
  }
}

int main() {
  greedy_output_is_that_of_a_model_without_cache();
  logprobs_are_the_models_own();
  the_likeliest_tokens_are_told_on_request();
  a_generation_goes_on_where_the_last_one_ended();
  eos_ends_and_is_kept_out_of_the_text();
  stop_strings_are_found_across_tokens();
  stop_strings_match_special_tokens();
  sampling_is_keyed_by_seed_stream_and_position();
  penalties_look_at_the_whole_log();
  what_it_made_before_counts();
  a_generation_pauses_where_it_is_told_to();
  refusals_come_before_any_change();
  a_row_that_is_no_distribution_fails_its_branch_alone();
}
