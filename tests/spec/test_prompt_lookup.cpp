// Prompt lookup against a scan of everything that was ever written.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "core/errors.h"
#include "cpp/check.h"
#include "spec/prompt_lookup.h"
#include "spec/text_drafts.h"

using namespace agentkv;
using namespace agentkv::testing;

namespace {

std::int32_t matched(const Draft& draft) {  // the length that the first node's confidence l / (l + 1) tells
  return static_cast<std::int32_t>(std::lround(draft.confidence[0] / (1 - draft.confidence[0])));
}

// Each token with what stood before it.
struct Scan {
  struct Entry {
    Tokens context;
    Token next;
  };
  std::vector<Entry> entries;

  void append(const Tokens& context, Token next) { entries.push_back({context, next}); }

  // The longest context that a history ends with, up to max_ngram, and the tokens that followed it.
  std::pair<std::int32_t, std::set<Token>> longest(const Tokens& history, std::int32_t max_ngram) const {
    std::pair<std::int32_t, std::set<Token>> best;
    for (const Entry& entry : entries) {
      const std::int32_t length = agree(history, entry.context, max_ngram);
      if (length > best.first) best = {length, {}};
      if (length == best.first) best.second.insert(entry.next);
    }
    return best;
  }
};

void continues_its_own_history() {
  PromptLookup drafter;
  const Tokens history{1, 2, 3, 4, 5, 6, 9, 1, 2, 3};
  write(drafter, 7, 0, {1, 2, 3, 4, 5, 6, 9, 1, 2});
  const Draft draft = propose(drafter, 7, history, 3);
  CHECK(draft.tokens == (Tokens{4, 5, 6}));
  CHECK(draft.parents == (std::vector<std::int32_t>{-1, 0, 1}));
  CHECK_EQ(matched(draft), 3);
  CHECK(draft.confidence[0] < draft.confidence[1] && draft.confidence[1] < draft.confidence[2]);
  CHECK(propose(drafter, 7, {1, 2, 3, 4, 5, 6, 9, 1, 2, 8}).empty());
}

void a_repetition_goes_on_without_end() {
  PromptLookup drafter;
  const Draft draft = propose(drafter, 0, {5, 6, 7, 5, 6, 7, 5, 6}, 10);
  CHECK(draft.tokens == (Tokens{7, 5, 6, 7, 5, 6, 7, 5, 6, 7}));
}

void short_histories_get_nothing() {
  PromptLookup drafter({.min_ngram = 3});
  CHECK(propose(drafter, 0, {}).empty());
  CHECK(propose(drafter, 0, {1}).empty());
  CHECK(propose(drafter, 0, {1, 1, 1}).empty());
  CHECK(propose(drafter, 0, {1, 1, 1, 1, 1}, 4).tokens == (Tokens{1, 1, 1, 1}));
}

void the_longest_match_wins_and_then_the_newest() {
  PromptLookup drafter({.width = 1});
  write(drafter, 0, 0, {8, 1, 2, 3, 50, 9, 1, 2, 3, 60, 7, 1, 2, 3, 70});
  CHECK(propose(drafter, 1, {8, 1, 2, 3}, 1).tokens == Tokens{50});
  CHECK(propose(drafter, 2, {9, 1, 2, 3}, 1).tokens == Tokens{60});
  CHECK(propose(drafter, 3, {4, 1, 2, 3}, 1).tokens == Tokens{70});
  PromptLookup shortest({.max_ngram = 3, .width = 1});
  write(shortest, 0, 0, {8, 1, 2, 3, 50, 9, 1, 2, 3, 60});
  CHECK(propose(shortest, 1, {8, 1, 2, 3}, 1).tokens == Tokens{60});
}

void continuations_that_differ_share_their_trunk() {
  PromptLookup drafter({.width = 2});
  write(drafter, 0, 0, {1, 2, 3, 4, 50, 51, 0, 1, 2, 3, 4, 60, 61, 0, 5, 2, 3, 4, 70, 71});
  const Draft draft = propose(drafter, 1, {1, 2}, 6, 4);
  CHECK(draft.tokens == (Tokens{3, 4, 60, 61, 50, 51}));
  CHECK(draft.parents == (std::vector<std::int32_t>{-1, 0, 1, 2, 1, 4}));
  CHECK(draft.confidence[2] + draft.confidence[4] < 1);
  // A budget cuts the least likely nodes.
  CHECK(propose(drafter, 1, {1, 2}, 4, 4).tokens == (Tokens{3, 4, 60, 61}));
  PromptLookup wide({.width = 3});
  write(wide, 0, 0, {2, 3, 10, 2, 3, 20, 2, 3, 30, 2, 3, 40, 9});
  const Draft three = propose(wide, 1, {2, 3}, 8, 1);
  CHECK(three.tokens == (Tokens{40, 30, 20}));
}

void a_longer_continuation_extends_a_shorter_one() {
  PromptLookup drafter({.width = 1});
  write(drafter, 0, 0, {1, 2, 3, 4, 5, 6});
  write(drafter, 1, 0, {1, 2, 3, 4});
  CHECK(propose(drafter, 2, {1, 2}, 4).tokens == (Tokens{3, 4, 5, 6}));
}

void siblings_see_each_other() {
  PromptLookup drafter;
  write(drafter, 0, 0, {1, 2, 3, 4});
  drafter.shared(0, 1, 4);
  write(drafter, 1, 4, {5, 6, 7});
  const std::int64_t indexed = drafter.index().tokens_indexed();
  CHECK_EQ(indexed, 7);  // what is shared, once
  // The fork's text directly behind the common history, with all of it as context.
  const Draft draft = propose(drafter, 0, {1, 2, 3, 4, 5}, 2);
  CHECK(draft.tokens == (Tokens{6, 7}));
  CHECK_EQ(matched(draft), 5);
  drafter.closed(1);
  CHECK(propose(drafter, 0, {1, 2, 3, 4, 5}, 2).tokens == draft.tokens);
}

void what_was_rolled_back_is_remembered() {
  PromptLookup drafter;
  write(drafter, 0, 0, {1, 2, 3, 4, 5, 6});
  drafter.truncated(0, 3);
  CHECK(propose(drafter, 0, {1, 2, 3, 4}, 2).tokens == (Tokens{5, 6}));
  drafter.truncated(0, 3);
  write(drafter, 0, 3, {9, 8, 7});
  drafter.truncated(0, 2);  // further back than the document of the new text began
  const Draft draft = propose(drafter, 0, {1, 2, 3}, 4);
  CHECK(draft.tokens == (Tokens{9, 8, 7, 4}));  // the newest, then what differs
  CHECK(draft.parents == (std::vector<std::int32_t>{-1, 0, 1, -1}));
  // The last token fed once more, as for its logits, is nothing new.
  const std::int64_t indexed = drafter.index().tokens_indexed();
  write(drafter, 0, 2, {50});
  drafter.truncated(0, 2);
  write(drafter, 0, 2, {50});
  CHECK_EQ(drafter.index().tokens_indexed(), indexed + 1);
  // adopt: the branch now begins as another does
  write(drafter, 5, 0, {40, 41, 42, 43});
  drafter.truncated(0, 0);
  drafter.shared(5, 0, 4);
  write(drafter, 0, 4, {44, 45});
  const Draft adopted = propose(drafter, 5, {40, 41, 42, 43, 44}, 1);
  CHECK_EQ(adopted.tokens[0], 45);
  CHECK_EQ(matched(adopted), 5);
}

void branches_that_were_there_before_are_read_once() {
  PromptLookup drafter({.width = 1});
  Tokens trunk;
  std::mt19937 random(3);
  for (int i = 0; i < 5000; ++i) trunk.push_back(static_cast<Token>(random() % 1000));
  for (BranchId branch = 0; branch < 8; ++branch) {
    Tokens history = trunk;
    history.insert(history.end(), {static_cast<Token>(2000 + branch), 3000});
    write(drafter, branch, 4990, {trunk[4990]});  // means nothing to it
    propose(drafter, branch, history);
    write(drafter, branch, 5001, {3000, static_cast<Token>(4000 + branch)});
  }
  CHECK_EQ(drafter.index().tokens_indexed(), 5000 + 8 * 3);
  Tokens sixth = trunk;
  sixth.insert(sixth.end(), {2006, 3000});
  const Draft draft = propose(drafter, 99, sixth, 1);
  CHECK_EQ(draft.tokens[0], 4006);
  CHECK_EQ(matched(draft), 16);
}

void random_verbs_agree_with_a_scan(std::uint32_t seed, std::int32_t vocabulary) {
  constexpr std::int32_t kMin = 2, kMax = 6;
  PromptLookup drafter({.max_ngram = kMax, .min_ngram = kMin, .width = 1, .max_chain = 1 << 30});
  Scan scan;
  std::map<BranchId, Tokens> branches{{0, {}}};
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const auto any = [&] { return std::next(branches.begin(), static_cast<std::ptrdiff_t>(below(branches.size()))); };
  BranchId next_id = 1;
  int guessed = 0;
  for (int round = 0; round < 3000; ++round) {
    auto [id, log] = *any();
    const std::size_t verb = below(20);
    if (verb < 10) {
      Tokens more(1 + below(verb == 0 ? 40 : 3));
      for (Token& token : more) token = static_cast<Token>(below(static_cast<std::size_t>(vocabulary)));
      write(drafter, id, static_cast<Pos>(log.size()), more);
      for (const Token token : more) {
        scan.append(log, token);
        log.push_back(token);
      }
    } else if (verb < 12 && branches.size() < 8) {
      const std::size_t length = below(log.size() + 1);
      drafter.shared(id, next_id, static_cast<Pos>(length));
      branches[next_id++] = Tokens(log.begin(), log.begin() + static_cast<std::ptrdiff_t>(length));
    } else if (verb < 14) {
      log.resize(log.size() - below(std::min<std::size_t>(log.size(), 20) + 1));
      drafter.truncated(id, static_cast<Pos>(log.size()));
    } else if (verb == 14 && branches.size() > 1) {
      drafter.closed(id);
      branches.erase(id);
      continue;
    } else if (verb == 15 && branches.size() > 1) {  // adopt
      const auto& [src, text] = *any();
      if (src == id) continue;
      drafter.truncated(id, 0);
      drafter.shared(src, id, static_cast<Pos>(text.size()));
      log = text;
    } else {
      Tokens history = log;
      history.push_back(static_cast<Token>(below(static_cast<std::size_t>(vocabulary))));
      const auto [length, tokens] = scan.longest(history, kMax);
      const Draft draft = propose(drafter, id, history, 1 + static_cast<std::int32_t>(below(8)));
      CHECK_EQ(draft.empty(), length < kMin);
      if (draft.empty()) continue;
      CHECK_EQ(matched(draft), length);
      CHECK(tokens.contains(draft.tokens[0]));
      ++guessed;
    }
    branches[id] = log;
  }
  CHECK(guessed > 100);
}

void text_is_bounded() {
  constexpr std::int64_t kCap = 8192;
  PromptLookup drafter({.max_tokens = kCap});
  std::mt19937 random(5);
  Tokens history;
  Tokens oldest;
  for (int round = 0; round < 400; ++round) {
    Tokens more(100);
    for (Token& token : more) token = static_cast<Token>(random() % 50000);
    write(drafter, 0, static_cast<Pos>(history.size()), more);
    history.insert(history.end(), more.begin(), more.end());
    if (round % 10 == 0) {  // forks that end
      drafter.shared(0, 1 + round, static_cast<Pos>(history.size()));
      write(drafter, 1 + round, static_cast<Pos>(history.size()), {1, 2, 3});
      drafter.closed(1 + round);
    }
    CHECK(drafter.index().tokens_held() <= kCap);
  }
  const auto seen = [&](std::size_t at) {
    return !propose(drafter, 1000, {history[at], history[at + 1], history[at + 2]}, 1).empty();
  };
  CHECK(!seen(100) && !seen(30000));
  CHECK(seen(39000) && seen(39990));
  // A branch whose text was forgotten goes on.
  drafter.truncated(0, 200);
  write(drafter, 0, 200, {7, 8, 9, 10, 11});
  CHECK(propose(drafter, 1001, {7, 8, 9}, 2).tokens == (Tokens{10, 11}));
}

void cost_does_not_grow_with_history() {
  constexpr std::int32_t kChain = 8;
  constexpr std::size_t kHistory = 32768, kRounds = 10000;
  PromptLookup drafter({.max_chain = kChain});
  std::mt19937 random(9);
  Tokens history;
  for (std::size_t i = 0; i < kHistory; ++i) history.push_back(static_cast<Token>(random() % 8));  // every n-gram often
  write(drafter, 0, 0, history);
  for (std::size_t round = 0; round < kRounds; ++round) {
    const auto pending = static_cast<Token>(random() % 8);
    history.push_back(pending);
    CHECK(!propose(drafter, 0, history, 8, 8).empty());
    write(drafter, 0, static_cast<Pos>(history.size() - 1), {pending});
  }
  CHECK_EQ(drafter.index().tokens_indexed(), static_cast<std::int64_t>(kHistory + kRounds));
  CHECK(drafter.matches_compared() <= static_cast<std::int64_t>(kRounds * kChain));
}

void options_are_checked() {
  CHECK_THROWS(PromptLookup({.max_ngram = 0}), InvalidDrafter, "max_ngram is 0", "[1, 1024]");
  CHECK_THROWS(PromptLookup({.max_ngram = 3, .min_ngram = 4}), InvalidDrafter, "min_ngram is 4", "[1, 3]");
  CHECK_THROWS(PromptLookup({.min_ngram = 0}), InvalidDrafter, "min_ngram is 0");
  CHECK_THROWS(PromptLookup({.max_nodes = 0}), InvalidDrafter, "max_nodes is 0");
  CHECK_THROWS(PromptLookup({.width = 0}), InvalidDrafter, "width is 0");
  CHECK_THROWS(PromptLookup({.max_chain = 0}), InvalidDrafter, "max_chain is 0");
  CHECK_THROWS(PromptLookup({.max_tokens = 100}), InvalidDrafter, "max_tokens is 100", "4096");
}

}  // namespace

int main() {
  continues_its_own_history();
  a_repetition_goes_on_without_end();
  short_histories_get_nothing();
  the_longest_match_wins_and_then_the_newest();
  continuations_that_differ_share_their_trunk();
  a_longer_continuation_extends_a_shorter_one();
  siblings_see_each_other();
  what_was_rolled_back_is_remembered();
  branches_that_were_there_before_are_read_once();
  for (std::uint32_t seed = 0; seed < 6; ++seed) random_verbs_agree_with_a_scan(seed, seed % 2 ? 3 : 12);
  text_is_bounded();
  cost_does_not_grow_with_history();
  options_are_checked();
}
