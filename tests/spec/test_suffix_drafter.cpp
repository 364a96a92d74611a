// Suffix drafts against a scan of everything that was ever written.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "core/errors.h"
#include "cpp/check.h"
#include "spec/suffix_drafter.h"
#include "spec/text_drafts.h"

using namespace agentkv;
using namespace agentkv::testing;

namespace {

Tokens random_text(std::mt19937& random, std::size_t n, std::size_t vocabulary) {
  Tokens text(n);
  for (Token& token : text) token = static_cast<Token>(random() % vocabulary);
  return text;
}

// All that was written: each token with what stood before it on its branch.
struct Scan {
  static constexpr std::array<std::int32_t, 5> kLengths{1, 2, 4, 8, 16};
  static constexpr std::int32_t kMost = 32;
  struct Entry {
    Tokens context;
    Token next;
  };
  std::vector<Entry> entries;

  // The parts of weight that the tokens after `history` have, of the entries whose context ends as it does for at least
  // the longest of kLengths that any does.
  std::map<Token, double> parts(const Tokens& history) const {
    std::int32_t most = 0;
    for (const Entry& entry : entries) most = std::max(most, agree(entry.context, history, kMost));
    std::int32_t least = 0;
    for (const std::int32_t length : kLengths) least = length <= most ? length : least;
    std::map<Token, double> parts;
    double whole = 0;
    std::int32_t longest = 0;
    for (const Entry& entry : entries) {
      const std::int32_t length = agree(entry.context, history, kMost);
      if (least == 0 || length < least) continue;
      parts[entry.next] += length * length;
      whole += length * length;
      longest = std::max(longest, length);
    }
    for (auto& [token, part] : parts) part /= whole + longest * static_cast<double>(parts.size());
    return parts;
  }
};

void a_lone_occurrence_is_followed() {
  SuffixDrafter drafter;
  write(drafter, 7, 0, {1, 2, 3, 4, 5, 6, 9, 1, 2});
  const Draft draft = propose(drafter, 7, {1, 2, 3, 4, 5, 6, 9, 1, 2, 3}, 3);
  CHECK(draft.tokens == (Tokens{4, 5, 6}));
  CHECK(draft.parents == (std::vector<std::int32_t>{-1, 0, 1}));
  for (int i = 0; i < 3; ++i) CHECK(std::abs(draft.confidence[i] - (3.0 + i) / (4.0 + i)) < 1e-6);
  CHECK(propose(drafter, 7, {1, 2, 3, 4, 5, 6, 9, 1, 2, 8}).empty());
  CHECK(propose(drafter, 7, {}).empty());
  CHECK(propose(drafter, 8, {3}, 2).tokens == (Tokens{4, 5}));
}

void what_is_forced_is_looked_past() {
  SuffixDrafter drafter;
  write(drafter, 0, 0, {1, 2, 3, 4, 5, 6});
  CHECK(propose(drafter, 1, {9, 1}, 2, 8, {2, 3}).tokens == (Tokens{4, 5}));
  CHECK(propose(drafter, 1, {9, 1}, 4, 8, {7}).empty());
  CHECK(propose(drafter, 1, {9, 1}, 3, 8).tokens == (Tokens{2, 3, 4}));  // and nothing of it was written
  // The text that is being written goes on with the pending token, what is forced and the guess.
  const Tokens own{5, 6, 7, 5, 6};
  CHECK(propose(drafter, 2, own, 6, 8, {7, 5}).tokens == (Tokens{6, 7, 5, 6, 7, 5}));
}

void a_lone_token_is_found_in_another_spelling() {
  // 11 is another spelling of 1, and 12 of 2.
  SuffixDrafter drafter({.spellings = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2}});
  write(drafter, 0, 0, {8, 1, 2, 3, 4, 7, 12, 5, 6});
  CHECK(propose(drafter, 1, {9, 11}, 3).tokens == (Tokens{2, 3, 4}));
  CHECK(propose(drafter, 1, {9, 1}, 3).tokens == (Tokens{2, 3, 4}));
  CHECK(propose(drafter, 1, {9, 2}, 2, 1).tokens == (Tokens{5, 3}));  // one as good as the other: the newest first
  CHECK(propose(drafter, 1, {8, 11}, 3).tokens == (Tokens{2, 3, 4}));
  CHECK(propose(drafter, 1, {1, 2}, 2, 1).tokens == Tokens{3});  // two that agree are better
  CHECK(propose(drafter, 1, {9, 100}, 3).empty());
}

void a_repetition_goes_on_without_end() {
  SuffixDrafter drafter({.max_nodes = 10});
  const Draft draft = propose(drafter, 0, {5, 6, 7, 5, 6, 7, 5, 6}, 10);
  CHECK(draft.tokens == (Tokens{7, 5, 6, 7, 5, 6, 7, 5, 6, 7}));
}

void what_followed_oftener_comes_first() {
  SuffixDrafter drafter;
  write(drafter, 0, 0, {1, 2, 10, 0, 1, 2, 20, 0, 1, 2, 10, 0, 1, 2, 30, 0});
  const Draft draft = propose(drafter, 1, {1, 2}, 3, 1);
  CHECK(draft.tokens == (Tokens{10, 30, 20}));  // of equals the newest
  CHECK(draft.parents == (std::vector<std::int32_t>{-1, -1, -1}));
  CHECK(std::abs(draft.confidence[0] - 8.0 / 22) < 1e-6);  // two of four occurrences of two tokens, weighing 4 each
  CHECK(std::abs(draft.confidence[1] - 4.0 / 22) < 1e-6);
}

void longer_contexts_weigh_more() {
  SuffixDrafter drafter;
  write(drafter, 0, 0, {7, 1, 2, 50, 0, 9, 1, 2, 60, 0, 8, 1, 2, 60});
  CHECK(propose(drafter, 1, {7, 1, 2}, 2, 1).tokens == (Tokens{50, 60}));  // 9 against 4 + 4
}

void continuations_that_differ_share_their_trunk() {
  SuffixDrafter drafter;
  write(drafter, 0, 0, {1, 2, 3, 4, 50, 51, 0, 1, 2, 3, 4, 60, 61, 0, 5, 2, 3, 4, 70, 71});  // of the last, less agrees
  const Draft draft = propose(drafter, 1, {1, 2}, 8, 4);
  CHECK(draft.tokens == (Tokens{3, 4, 60, 50, 61, 51}));
  CHECK(draft.parents == (std::vector<std::int32_t>{-1, 0, 1, 1, 2, 3}));
}

void far_text_is_found_among_much_that_is_near() {
  SuffixDrafter drafter;
  Tokens text{11, 12, 13, 14, 15, 1, 2, 99};
  for (int i = 0; i < 500; ++i) text.insert(text.end(), {1, 2, static_cast<Token>(200 + i % 7)});
  write(drafter, 0, 0, text);
  CHECK(propose(drafter, 1, {11, 12, 13, 14, 15, 1, 2}, 1).tokens == Tokens{99});
}

void eight_forks_that_go_on_alike_draft_from_one_another() {
  constexpr BranchId kForks = 8;
  std::mt19937 random(2);
  SuffixDrafter drafter;
  Tokens trunk = random_text(random, 40, 50000), answer = random_text(random, 60, 50000);
  write(drafter, 0, 0, trunk);
  for (BranchId fork = 1; fork <= kForks; ++fork) drafter.shared(0, fork, 40);
  // All wait with the first token of the answer; the first fork goes on, the others follow its draft.
  write(drafter, 1, 40, answer);
  CHECK_EQ(drafter.index().tokens_indexed(), 100);  // the trunk once
  for (BranchId fork = 2; fork <= kForks; ++fork) {
    Tokens history = trunk;
    std::size_t forwards = 0;
    for (history.push_back(answer[0]); history.size() < 100; ++forwards) {
      const Draft draft = propose(drafter, fork, history, 16);
      const auto at = static_cast<Pos>(history.size()) - 1;
      const std::size_t n = std::min<std::size_t>(16, 100 - history.size());
      const Tokens right(answer.begin() + (at - 39), answer.begin() + (at - 39) + static_cast<Pos>(n));
      CHECK(draft.size() >= n && std::equal(right.begin(), right.end(), draft.tokens.begin()));
      Tokens fed{history.back()};
      fed.insert(fed.end(), right.begin(), right.end());
      write(drafter, fork, at, fed);
      history.insert(history.end(), right.begin(), right.end());
    }
    CHECK_EQ(forwards, 4u);  // for 59 tokens
  }
}

void what_was_rolled_back_is_remembered() {
  SuffixDrafter drafter;
  write(drafter, 0, 0, {1, 2, 3, 4, 5, 6});
  drafter.truncated(0, 3);
  CHECK(propose(drafter, 0, {1, 2, 3, 4}, 2).tokens == (Tokens{5, 6}));
  const std::int64_t indexed = drafter.index().tokens_indexed();
  write(drafter, 0, 3, {4, 5, 6});  // fed once more: nothing new
  CHECK_EQ(drafter.index().tokens_indexed(), indexed);
  drafter.closed(0);
  CHECK(propose(drafter, 3, {3, 4}, 2).tokens == (Tokens{5, 6}));
}

void random_verbs_agree_with_a_scan(std::uint32_t seed, std::size_t vocabulary) {
  SuffixDrafter drafter({.max_nodes = 64});
  Scan scan;
  std::map<BranchId, Tokens> branches{{0, {}}};
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const auto any = [&] { return std::next(branches.begin(), static_cast<std::ptrdiff_t>(below(branches.size()))); };
  BranchId next_id = 1;
  int compared = 0, wide = 0;
  // No token is followed more often than occurrences are counted: then the scan and the drafter count the same.
  std::map<Token, int> followed;
  std::set<std::pair<Tokens, Token>> contexts;
  for (int round = 0; round < 1000; ++round) {
    auto [id, log] = *any();
    const std::size_t verb = below(20);
    if (verb < 8) {
      Tokens more = random_text(random, 1 + below(6), vocabulary);
      if (below(3) == 0 && scan.entries.size() > 9) {  // as something before
        const auto& source = scan.entries[below(scan.entries.size())].context;
        more.assign(source.end() - static_cast<std::ptrdiff_t>(std::min<std::size_t>(source.size(), 20)), source.end());
      }
      const auto first = static_cast<Pos>(log.size());
      for (const Token token : more) {
        // What a fork says as its trunk did is one text.
        if (!contexts.emplace(log, token).second) break;
        if (!log.empty() && ++followed[log.back()] > 32) break;
        scan.entries.push_back({log, token});
        log.push_back(token);
      }
      write(drafter, id, first, Tokens(log.begin() + first, log.end()));
    } else if (verb < 10 && branches.size() < 8) {
      const std::size_t length = below(log.size() + 1);
      drafter.shared(id, next_id, static_cast<Pos>(length));
      branches[next_id++] = Tokens(log.begin(), log.begin() + static_cast<std::ptrdiff_t>(length));
    } else if (verb == 10 && branches.size() > 1) {
      drafter.closed(id);
      branches.erase(id);
      continue;
    } else if (verb == 11 && branches.size() > 1) {  // adopt
      const auto& [src, text] = *any();
      if (src == id) continue;
      drafter.truncated(id, 0);
      drafter.shared(src, id, static_cast<Pos>(text.size()));
      log = text;
    } else {
      Tokens history = log;
      history.push_back(static_cast<Token>(below(vocabulary)));
      const Draft draft = propose(drafter, id, history, 64, 1);
      const auto parts = scan.parts(history);
      CHECK_EQ(draft.size(), parts.size());
      for (std::size_t node = 0; node < draft.size(); ++node) {
        CHECK(std::abs(static_cast<double>(draft.confidence[node]) - parts.at(draft.tokens[node])) < 1e-5);
        CHECK(node == 0 || draft.confidence[node] <= draft.confidence[node - 1]);
      }
      ++compared;
      wide += draft.size() > 1;
    }
    branches[id] = log;
  }
  CHECK(compared > 50 && wide > 20);
}

// The path probabilities fall from node to node, and every node follows its parent somewhere in the text.
void trees_are_of_the_text_and_best_first(std::uint32_t seed) {
  std::mt19937 random(seed);
  SuffixDrafter drafter({.max_nodes = 64});
  const Tokens text = random_text(random, 3000, 4);
  write(drafter, 0, 0, text);
  for (int round = 0; round < 200; ++round) {
    const Tokens query(text.begin() + round * 10, text.begin() + round * 10 + 1 + round % 12);
    const Draft draft = propose(drafter, 1, query, 64, 1 + round % 16);
    std::vector<double> path(draft.size());
    std::vector<Tokens> words(draft.size());
    std::map<std::int32_t, double> sum;
    for (std::size_t i = 0; i < draft.size(); ++i) {
      const auto parent = static_cast<std::size_t>(draft.parents[i]);
      const bool root = draft.parents[i] < 0;
      path[i] = static_cast<double>(draft.confidence[i]) * (root ? 1 : path[parent]);
      CHECK(i == 0 || path[i] <= path[i - 1] * (1 + 1e-5));
      words[i] = root ? Tokens{query.back()} : words[parent];
      words[i].push_back(draft.tokens[i]);
      CHECK(std::search(text.begin(), text.end(), words[i].begin(), words[i].end()) != text.end());
      sum[draft.parents[i]] += static_cast<double>(draft.confidence[i]);
    }
    for (const auto& [parent, whole] : sum) CHECK(whole < 1);
    drafter.closed(1);
  }
}

void text_is_bounded_and_the_oldest_goes_first() {
  constexpr std::int64_t kCap = 8192;
  SuffixDrafter drafter({.max_tokens = kCap});
  std::mt19937 random(5);
  Tokens history;
  std::size_t most = 0;
  for (int round = 0; round < 400; ++round) {
    const Tokens more = random_text(random, 100, 50000);
    write(drafter, 0, static_cast<Pos>(history.size()), more);
    history.insert(history.end(), more.begin(), more.end());
    if (round % 10 == 0) {  // forks that end
      drafter.shared(0, 1 + round, static_cast<Pos>(history.size()));
      write(drafter, 1 + round, static_cast<Pos>(history.size()), {1, 2, 3});
      drafter.closed(1 + round);
    }
    CHECK(drafter.index().tokens_held() <= kCap);
    most = std::max(most, drafter.memory_bytes());
  }
  CHECK(most > 0 && most < kCap * 320);
  const auto seen = [&](std::size_t at) {
    return propose(drafter, 1000, {history[at], history[at + 1], history[at + 2]}, 1).tokens == Tokens{history[at + 3]};
  };
  CHECK(!seen(100) && !seen(30000));
  CHECK(seen(39000) && seen(39990));
}

// Whatever the text is, a token costs no more than a bound that does not know how much there is.
void a_token_costs_the_same_whatever_the_text(const char* what, std::size_t n, Token (*token)(std::size_t)) {
  SuffixDrafter drafter({.max_tokens = 1 << 16});
  Tokens history;
  history.reserve(n);
  std::int64_t worst = 0;
  for (std::size_t round = 0; history.size() < n; ++round) {
    const std::size_t chunk = round % 50 ? 1 : 1 + n / 64;  // prompts between tokens
    Tokens more;
    for (std::size_t i = 0; i < chunk; ++i) more.push_back(token(history.size() + i));
    write(drafter, 0, static_cast<Pos>(history.size()), more);
    history.insert(history.end(), more.begin(), more.end());
    history.push_back(token(history.size()));
    const std::int64_t before = drafter.steps();
    propose(drafter, 0, history, 16, 16);
    worst = std::max(worst, drafter.steps() - before);
    history.pop_back();
  }
  if (worst > 5 + 32 * 33 + 16 * 32) std::printf("%s: %lld steps\n", what, static_cast<long long>(worst));
  CHECK(worst <= 5 + 32 * 33 + 16 * 32);  // look-ups, comparisons of occurrences, expansions
  CHECK(drafter.index().tokens_held() <= 1 << 16);
  CHECK(drafter.memory_bytes() < (1 << 16) * 320);
}

void a_million_tokens_cost_the_same_each() {
  constexpr std::size_t kTokens = 1'000'000;
  a_token_costs_the_same_whatever_the_text("one token", kTokens, [](std::size_t) { return Token{1}; });
  a_token_costs_the_same_whatever_the_text("a period", kTokens,
                                           [](std::size_t i) { return static_cast<Token>(i % 7); });
  a_token_costs_the_same_whatever_the_text("few tokens", kTokens,
                                           [](std::size_t i) { return static_cast<Token>((i * i + i / 3) % 5); });
  a_token_costs_the_same_whatever_the_text("new tokens", kTokens, [](std::size_t i) { return static_cast<Token>(i); });
}

void reading_costs_the_same_per_token() {
  SuffixDrafter drafter({.max_tokens = 1 << 14});
  std::mt19937 random(4);
  std::int64_t before = 0;
  Pos length = 0;
  for (int round = 0; round < 64; ++round) {
    const Tokens more = random_text(random, 4096, 3);
    write(drafter, 0, length, more);
    length += 4096;
    CHECK(drafter.steps() - before <= 4096 * 2 * 5 * 2);  // read and forgotten, five lengths, documents repeat context
    before = drafter.steps();
  }
}

void a_corpus_is_drafted_from_and_only_the_new_is_given_out() {
  std::mt19937 random(8);
  const Tokens old = random_text(random, 3000, 50000), more = random_text(random, 2500, 50000);
  SuffixDrafter first;
  CHECK(first.new_text().empty());
  write(first, 0, 0, old);
  std::vector<Tokens> kept = first.new_text();
  SuffixDrafter second;
  for (const Tokens& text : kept) second.read_corpus(text);
  CHECK(propose(second, 0, {old[10], old[11]}, 2).tokens == (Tokens{old[12], old[13]}));
  CHECK(propose(second, 0, {old[2900], old[2901]}, 2).tokens == (Tokens{old[2902], old[2903]}));
  CHECK(second.new_text().empty());
  Tokens both = old;
  both.insert(both.end(), more.begin(), more.end());
  write(second, 1, 0, both);
  std::size_t n = 0;
  for (const Tokens& text : second.new_text()) n += text.size();
  CHECK(n >= more.size() && n < more.size() + 200);  // with a little of what came before it
}

void options_are_checked() {
  CHECK_THROWS(SuffixDrafter({.max_nodes = 0}), InvalidDrafter, "max_nodes is 0");
  CHECK_THROWS(SuffixDrafter({.max_tokens = 100}), InvalidDrafter, "max_tokens is 100", "4096");
}

}  // namespace

int main() {
  a_lone_occurrence_is_followed();
  what_is_forced_is_looked_past();
  a_lone_token_is_found_in_another_spelling();
  a_repetition_goes_on_without_end();
  what_followed_oftener_comes_first();
  longer_contexts_weigh_more();
  continuations_that_differ_share_their_trunk();
  far_text_is_found_among_much_that_is_near();
  eight_forks_that_go_on_alike_draft_from_one_another();
  what_was_rolled_back_is_remembered();
  for (std::uint32_t seed = 0; seed < 8; ++seed) random_verbs_agree_with_a_scan(seed, seed % 2 ? 30 : 100);
  for (std::uint32_t seed = 0; seed < 4; ++seed) trees_are_of_the_text_and_best_first(seed);
  text_is_bounded_and_the_oldest_goes_first();
  a_million_tokens_cost_the_same_each();
  reading_costs_the_same_per_token();
  a_corpus_is_drafted_from_and_only_the_new_is_given_out();
  options_are_checked();
}
