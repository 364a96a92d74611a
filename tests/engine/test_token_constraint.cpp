// Token constraints: they hold for every draw, of plain decoding and of verification.
#include <algorithm>
#include <limits>
#include <memory>

#include "engine/rig.h"
#include "engine/test_drafter.h"

namespace agentkv::testing {
namespace {

// Lets a token come whose parity is not that of the last one.
struct Alternating final : TokenConstraint {
  void mask(std::span<const Token> history, std::span<float> scores) override {
    for (std::size_t token = 0; token < scores.size(); ++token) {
      if (static_cast<Token>(token) % 2 == history.back() % 2) scores[token] = -std::numeric_limits<float>::infinity();
    }
  }
};

struct Nothing final : TokenConstraint {
  void mask(std::span<const Token>, std::span<float> scores) override {
    std::fill(scores.begin(), scores.end(), -std::numeric_limits<float>::infinity());
  }
};

void a_constraint_holds_with_and_without_drafts() {
  for (const Sampling& sampling : {Sampling{}, Sampling{.temperature = 1.2f, .top_p = 0.9f}}) {
    Rig plain, drafted;
    const Tokens prompt = prompt_tokens(6);
    GenerateOptions options{.max_tokens = 40, .sampling = sampling, .ignore_eos = true};
    options.constraint = std::make_shared<Alternating>();
    const Finished want = plain.run(plain.engine.generate(plain.prompt(prompt), options));
    const Tokens whole = joined(prompt, want.tokens);
    for (std::size_t at = prompt.size(); at < whole.size(); ++at) CHECK(whole[at] % 2 != whole[at - 1] % 2);
    // Proposes what comes, but at every third place a token that the constraint forbids.
    const auto drafter = std::make_shared<TestDrafter>([&](const DraftRequest& request) {
      Draft draft;
      for (std::size_t at = request.history.size(); at < whole.size() && draft.size() < 3; ++at) {
        draft.tokens.push_back(at % 3 == 0 ? (whole[at] + 1) % 48 : whole[at]);
        draft.parents.push_back(static_cast<std::int32_t>(draft.parents.size()) - 1);
      }
      return draft;
    });
    options.drafter = drafter;
    drafted.engine.attach(drafter);
    const Finished got = drafted.run(drafted.engine.generate(drafted.prompt(prompt), options));
    CHECK(got.tokens == want.tokens);
    CHECK(got.logprobs == want.logprobs);
    CHECK(drafted.engine.stats().accepted > 0);
  }
}

void a_constraint_that_allows_nothing_fails_its_own_branch() {
  Rig rig;
  const BranchId branch = rig.prompt(prompt_tokens(6)), other = rig.prompt(prompt_tokens(5, 2));
  GenerateOptions options{.max_tokens = 4};
  options.constraint = std::make_shared<Nothing>();
  const JobId fine = rig.engine.generate(other, {.max_tokens = 4, .ignore_eos = true});
  const Finished f = rig.run(rig.engine.generate(branch, options));
  CHECK(f.error->message.find("allows no token") != std::string::npos);
  CHECK(f.tokens.empty());
  rig.drain();
  CHECK_EQ(rig.finished[fine].tokens.size(), 4u);
}

}  // namespace
}  // namespace agentkv::testing

int main() {
  using namespace agentkv::testing;
  a_constraint_holds_with_and_without_drafts();
  a_constraint_that_allows_nothing_fails_its_own_branch();
}
