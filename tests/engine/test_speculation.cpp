// Generations with drafters of every quality, beside every other verb: their tokens are those of plain decoding.
#include <algorithm>
#include <map>
#include <random>

#include "engine/rig.h"
#include "engine/test_drafter.h"

namespace agentkv::testing {
namespace {

Draft chain(Tokens tokens) {
  Draft draft{.tokens = std::move(tokens)};
  for (std::size_t i = 0; i < draft.size(); ++i) draft.parents.push_back(static_cast<std::int32_t>(i) - 1);
  return draft;
}

// Children of different tokens under random nodes; some nodes are what the target will say.
Draft random_tree(const Rig& rig, const DraftRequest& request, std::mt19937& random, double right) {
  const auto pick = [&](int n) { return static_cast<std::int32_t>(random() % static_cast<unsigned>(n)); };
  const int nodes = 1 + pick(std::min(64, request.max_nodes));
  Draft draft;
  std::vector<Tokens> paths;
  std::vector<int> depths;
  for (int tries = 0; static_cast<int>(draft.size()) < nodes && tries < 4 * nodes; ++tries) {
    const std::int32_t parent = pick(static_cast<int>(draft.size()) + 1) - 1;
    const int depth = parent < 0 ? 1 : depths[static_cast<std::size_t>(parent)] + 1;
    if (depth > 12) continue;
    Tokens path =
        parent < 0 ? Tokens(request.history.begin(), request.history.end()) : paths[static_cast<std::size_t>(parent)];
    const bool is_right = static_cast<double>(pick(1000)) < 1000 * right;
    const Token token = is_right ? rig.expected(path, 1).front() : pick(rig.options.info.vocab_size);
    if (draft.child(parent, token) >= 0) continue;
    draft.tokens.push_back(token);
    draft.parents.push_back(parent);
    path.push_back(token);
    paths.push_back(std::move(path));
    depths.push_back(depth);
  }
  return draft;
}

// Room for the whole drafts of several branches in one forward.
RigOptions roomy() {
  return {.capacity = 4096,
          .info = {.vocab_size = 48, .max_tokens = 256, .max_logits = 200},
          .config = {.max_batch_tokens = 256, .max_branches = 32}};
}

// The branches go on without an end.
RigOptions endless() {
  RigOptions options = roomy();
  options.eos = {};
  return options;
}

void any_draft_leaves_the_tokens_as_they_are() {
  std::mt19937 random(7);
  for (const double right : {0.0, 0.3, 0.9, 1.0}) {
    for (const float temperature : {0.0f, 0.8f}) {
      Rig rig(roomy());
      const auto drafter = std::make_shared<TestDrafter>(
          [&](const DraftRequest& request) { return random_tree(rig, request, random, right); });
      rig.engine.attach(drafter);
      std::vector<std::pair<JobId, Tokens>> jobs;
      const Sampling sampling{.temperature = temperature,
                              .top_k = 20,
                              .repetition_penalty = 1.1f,
                              .presence_penalty = 0.4f,
                              .frequency_penalty = -0.3f,
                              .logit_bias = {{5, 1.5f}, {9, -4}}};
      for (std::uint64_t i = 0; i < 8; ++i) {
        const Tokens prompt = prompt_tokens(3 + static_cast<int>(i), i);
        const BranchId branch = rig.prompt(prompt);
        jobs.emplace_back(
            rig.engine.generate(branch, {.max_tokens = 40, .sampling = sampling, .seed = 5, .drafter = drafter}),
            rig.expected(prompt, 40, sampling, 5, rig.engine.branch(branch).rng_stream));
      }
      rig.drain();
      for (const auto& [job, expected] : jobs) CHECK(rig.finished[job].tokens == expected);
      CHECK(rig.engine.stats().drafted > 0);
      if (right == 1.0 && temperature == 0) CHECK(rig.engine.stats().accepted > 60);
    }
  }
}

void what_is_told_with_each_token_is_that_of_plain_decoding() {
  std::mt19937 random(11);
  Rig plain(endless()), drafted(endless());
  const auto drafter = std::make_shared<TestDrafter>(
      [&](const DraftRequest& request) { return random_tree(drafted, request, random, 0.8); });
  drafted.engine.attach(drafter);
  GenerateOptions options{.max_tokens = 80,
                          .sampling = {.temperature = 0.7f, .presence_penalty = 0.5f, .frequency_penalty = 0.2f},
                          .emit = true,
                          .top_logprobs = 4};
  const Finished want = plain.run(plain.engine.generate(plain.prompt(prompt_tokens(6)), options));
  options.drafter = drafter;
  const Finished got = drafted.run(drafted.engine.generate(drafted.prompt(prompt_tokens(6)), options));
  CHECK(drafted.engine.stats().accepted > 10);
  CHECK(got.tokens == want.tokens);
  CHECK(got.logprobs == want.logprobs);
  CHECK_EQ(got.top_logprobs.size(), want.tokens.size());
  for (std::size_t i = 0; i < got.tokens.size(); ++i) {
    for (std::size_t rank = 0; rank < 4; ++rank) {
      const TokenLogprob one = got.top_logprobs[i][rank], other = want.top_logprobs[i][rank];
      CHECK_EQ(one.token, other.token);
      CHECK_EQ(one.logprob, other.logprob);
      CHECK_EQ(drafted.emitted[i].top_logprobs[rank].token, one.token);
    }
  }
}

void a_right_draft_makes_many_tokens_per_forward() {
  Rig rig(endless());
  const auto drafter = std::make_shared<TestDrafter>([&](const DraftRequest& request) {
    return chain(rig.expected({request.history.begin(), request.history.end()}, std::min(7, request.max_depth)));
  });
  rig.engine.attach(drafter);
  const BranchId branch = rig.prompt(prompt_tokens(5));
  const int before = rig.program->calls;
  CHECK(rig.generate(branch, 400, drafter).tokens == rig.expected(prompt_tokens(5), 400));
  CHECK(rig.program->calls - before < 400 / 4);
  CHECK(drafter->deepest >= 7);
}

void a_wrong_draft_is_soon_left_out_and_tried_again() {
  Rig rig(endless());
  const auto drafter = std::make_shared<TestDrafter>(
      [&](const DraftRequest& request) {
        const Token right = rig.expected({request.history.begin(), request.history.end()}, 1).front();
        return chain({right == 5 ? 6 : 5});
      },
      true);
  rig.engine.attach(drafter);
  const BranchId branch = rig.prompt(prompt_tokens(5));
  CHECK(rig.generate(branch, 1500, drafter).tokens == rig.expected(prompt_tokens(5), 1500));
  CHECK(rig.engine.stats().drafted < 400);  // times are real, and noisy
  CHECK(rig.engine.stats().drafted > 5);
  CHECK_EQ(rig.engine.stats().accepted, 0u);
}

void one_forward_verifies_the_trees_of_all_branches() {
  Rig rig(endless());
  const auto drafter = std::make_shared<TestDrafter>([&](const DraftRequest& request) {
    Draft draft = chain(rig.expected({request.history.begin(), request.history.end()}, 3));
    draft.cut(static_cast<std::size_t>(request.max_nodes));
    return draft;
  });
  rig.engine.attach(drafter);
  std::vector<JobId> jobs;
  for (std::uint64_t i = 0; i < 8; ++i) {
    const BranchId branch = rig.prompt(prompt_tokens(4, i));
    jobs.push_back(rig.engine.generate(branch, {.max_tokens = 60, .drafter = drafter}));
  }
  int steps = 0;
  const int before = rig.program->calls;
  while (!rig.engine.step().idle) ++steps;
  CHECK(rig.program->calls - before <= steps);
  CHECK(rig.engine.stats().accepted > 50);
}

void a_drafter_that_throws_fails_who_asked_it() {
  Rig rig(endless());
  const auto broken =
      std::make_shared<TestDrafter>([](const DraftRequest&) -> Draft { throw ForwardFailed("the head caught fire"); });
  rig.engine.attach(broken);
  const BranchId one = rig.prompt(prompt_tokens(5));
  const BranchId two = rig.prompt(prompt_tokens(6, 2));
  const JobId failing = rig.engine.generate(one, {.max_tokens = 20, .drafter = broken});
  const JobId plain = rig.engine.generate(two, {.max_tokens = 20});
  rig.drain();
  CHECK(rig.finished[failing].error);
  CHECK_EQ(rig.finished[failing].error->kind, ErrorKind::StepFailed);
  CHECK(rig.finished[failing].error->message.find("caught fire") != std::string::npos);
  CHECK(rig.finished[plain].tokens == rig.expected(prompt_tokens(6, 2), 20));
  CHECK(rig.generate(one, 20).error == std::nullopt);
}

void a_failed_forward_loses_no_token() {
  Rig rig(endless());
  std::mt19937 random(3);
  const auto drafter = std::make_shared<TestDrafter>(
      [&](const DraftRequest& request) { return random_tree(rig, request, random, 0.7); });
  rig.engine.attach(drafter);
  std::vector<JobId> jobs;
  for (std::uint64_t i = 0; i < 4; ++i) {
    jobs.push_back(rig.engine.generate(rig.prompt(prompt_tokens(4, i)), {.max_tokens = 60, .drafter = drafter}));
  }
  int forwards = 0;
  rig.program->fault = [&](std::span<const std::int64_t> tokens) {  // merged forwards fail, single jobs go through
    if (++forwards % 3 == 0 && tokens.size() > 20) throw ForwardFailed("injected");
  };
  rig.drain();
  CHECK(rig.engine.stats().retries > 0);
  for (std::uint64_t i = 0; i < 4; ++i) {
    const Finished& f = rig.finished[jobs[i]];
    const Tokens expected = rig.expected(prompt_tokens(4, i), 60);
    CHECK(f.tokens.size() <= expected.size() && std::equal(f.tokens.begin(), f.tokens.end(), expected.begin()));
    CHECK(f.error || f.tokens == expected);
  }
}

void a_full_cache_ends_as_it_does_without_drafts() {
  for (const Cell capacity : {24, 40, 61}) {
    std::vector<Finished> ends[2];
    for (const bool speculate : {false, true}) {
      Rig rig({.capacity = capacity, .eos = {}});
      std::mt19937 random(5);
      const auto drafter = std::make_shared<TestDrafter>(
          [&](const DraftRequest& request) { return random_tree(rig, request, random, 0.8); });
      rig.engine.attach(drafter);
      const BranchId branch = rig.prompt(prompt_tokens(5));
      ends[speculate].push_back(rig.generate(branch, 100, speculate ? drafter : nullptr));
    }
    CHECK(ends[0][0].tokens == ends[1][0].tokens);
    CHECK(std::string(ends[1][0].finish_reason) == "context_full");
  }
}

// Forks, rollbacks, adoptions, closes, cancellations and prefills between the steps of speculating generations.
void everything_at_once() {
  for (unsigned seed = 0; seed < 6; ++seed) {
    std::mt19937 random(seed);
    Rig rig({.capacity = 2048, .eos = {}});
    const auto drafter = std::make_shared<TestDrafter>(
        [&](const DraftRequest& request) { return random_tree(rig, request, random, 0.6); });
    rig.engine.attach(drafter);
    const auto pick = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    std::vector<BranchId> branches{rig.prompt(prompt_tokens(6, seed))};
    std::map<JobId, std::pair<Tokens, std::uint64_t>> running;  // history before, stream
    for (int verb = 0; verb < 400; ++verb) {
      const BranchId branch = branches[pick(branches.size())];
      const bool busy = rig.engine.branch(branch).job != nullptr;
      switch (pick(8)) {
        case 0:
        case 1:
          if (!busy && !rig.log(branch).empty()) {
            const auto stream = rig.engine.branch(branch).rng_stream;
            const JobId job = rig.engine.generate(
                branch,
                {.max_tokens = 1 + static_cast<int>(pick(30)), .sampling = {.temperature = 0.5f}, .drafter = drafter});
            running[job] = {rig.log(branch), stream};
          }
          break;
        case 2:
          if (branches.size() < 12) branches.push_back(rig.engine.fork(branch));
          break;
        case 3:
          if (!busy) rig.engine.rollback(branch, 1 + static_cast<Pos>(pick(rig.log(branch).size())));
          break;
        case 4:
          if (!busy) rig.engine.extend(branch, prompt_tokens(1 + static_cast<int>(pick(9)), random()));
          break;
        case 5:
          if (branches.size() > 4) {
            rig.engine.close(branch);
            std::erase(branches, branch);
          }
          break;
        case 6: {
          const BranchId other = branches[pick(branches.size())];
          if (!busy && !rig.engine.branch(other).job) rig.engine.adopt(branch, other);
          break;
        }
        case 7:
          if (busy && pick(4) == 0) rig.engine.cancel(rig.engine.branch(branch).job->id());
          break;
      }
      rig.step();
      for (const BranchId id : branches) {
        const Branch& b = rig.engine.branch(id);
        const Tokens cached(b.log.begin(), b.log.begin() + b.n_cached);
        CHECK(drafter->fed[id] == cached);
      }
    }
    rig.drain();
    CHECK(rig.engine.stats().accepted > 100);
    for (const auto& [job, start] : running) {
      const Finished& f = rig.finished[job];
      const Tokens expected =
          rig.expected(start.first, static_cast<int>(f.tokens.size()), {.temperature = 0.5f}, 0, start.second);
      CHECK(f.tokens == expected);
    }
    for (const BranchId id : branches) rig.engine.close(id);
    CHECK_EQ(rig.cells->used(), 0);
    CHECK(drafter->fed.empty());
  }
}

// Each is right in every other sixteen tokens: together they are always right.
void guesses_of_several_drafters_are_verified_together() {
  Rig rig(endless());
  const auto drafts_where = [&](bool odd) {
    return std::make_shared<TestDrafter>([&rig, odd](const DraftRequest& request) {
      if ((request.history.size() / 16) % 2 != odd) return chain({1, 1, 1});  // wrong
      return chain(rig.expected({request.history.begin(), request.history.end()}, std::min(6, request.max_depth)));
    });
  };
  const auto even = drafts_where(false), odd = drafts_where(true);
  const auto both = std::make_shared<TestMixture>(std::vector<std::shared_ptr<Drafter>>{even, odd});
  const Tokens prompt = prompt_tokens(5), want = rig.expected(prompt, 96);
  int forwards[3], i = 0;
  for (const std::shared_ptr<Drafter>& drafter : std::initializer_list<std::shared_ptr<Drafter>>{even, odd, both}) {
    rig.engine.attach(drafter);
    const int before = rig.program->calls;
    const BranchId branch = rig.prompt(prompt);
    CHECK(rig.run(rig.engine.generate(branch, {.max_tokens = 96, .drafter = drafter})).tokens == want);
    forwards[i++] = rig.program->calls - before;
    rig.engine.close(branch);
  }
  CHECK(forwards[2] < forwards[0] && forwards[2] < forwards[1]);
  CHECK(rig.engine.acceptance(*even).levels.front() > 0);  // each learns for itself
  CHECK_THROWS(rig.engine.acceptance(*both), InvalidEngine, "not attached");
}

void drafts_are_checked() {
  const auto refused = [](const Draft& draft, const char* what) {
    CHECK_THROWS(check_draft(draft, 10), InvalidDraft, what);
  };
  check_draft({.tokens = {1, 2, 2}, .parents = {-1, 0, -1}, .confidence = {0.5f, 1.0f, 0.1f}}, 10);
  refused({.tokens = {1}, .parents = {}}, "0 parents");
  refused({.tokens = {10}, .parents = {-1}}, "token 10");
  refused({.tokens = {1}, .parents = {0}}, "parent 0");
  refused({.tokens = {1, 1}, .parents = {-1, -1}}, "both token 1");
  refused({.tokens = {1}, .parents = {-1}, .confidence = {0.0f}}, "confidence 0");
}

}  // namespace
}  // namespace agentkv::testing

int main() {
  using namespace agentkv::testing;
  any_draft_leaves_the_tokens_as_they_are();
  what_is_told_with_each_token_is_that_of_plain_decoding();
  a_right_draft_makes_many_tokens_per_forward();
  a_wrong_draft_is_soon_left_out_and_tried_again();
  one_forward_verifies_the_trees_of_all_branches();
  a_drafter_that_throws_fails_who_asked_it();
  a_failed_forward_loses_no_token();
  a_full_cache_ends_as_it_does_without_drafts();
  everything_at_once();
  guesses_of_several_drafters_are_verified_together();
  drafts_are_checked();
}
