// Branches under adapters: which rows have which, what is shared, and that neighbours change nothing. The reference
// program hashes a token under an adapter as its key, and the rig compares every row of logits with that.
#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/rig.h"

using namespace agentkv;
using namespace agentkv::testing;

namespace {

using Span = AdapterSpans::Span;

std::vector<AdapterId> all(const AdapterSpans& spans, Pos length) {
  std::vector<AdapterId> out;
  for (Pos p = 0; p < length; ++p) out.push_back(spans.at(p));
  return out;
}

// Against a plain list with the adapter of every position and of the next.
void spans_are_a_list_in_short() {
  std::minstd_rand rng(3);
  const auto below = [&](Pos n) { return static_cast<Pos>(rng() % static_cast<unsigned>(std::max(n, 1))); };
  for (int round = 0; round < 300; ++round) {
    AdapterSpans spans;
    std::vector<AdapterId> list{0};  // the last one: of the next token
    for (int verb = 0; verb < 30; ++verb) {
      const auto length = static_cast<Pos>(list.size()) - 1;
      switch (below(4)) {
        case 0:
          list.insert(list.end(), static_cast<std::size_t>(below(4)), list.back());
          break;
        case 1:
          list.back() = below(4);
          spans.set(length, list.back());
          break;
        case 2: {
          const Pos kept = below(length + 1);
          list.resize(static_cast<std::size_t>(kept) + 1);
          spans.cut(kept);
          break;
        }
        default: {
          const Pos last = below(length), first = below(last + 1), count = below(3);
          const AdapterId of_new = list[static_cast<std::size_t>(first)];
          list.erase(list.begin() + first, list.begin() + last);
          list.insert(list.begin() + first, static_cast<std::size_t>(count), of_new);
          spans.replace(first, last, count);
        }
      }
      CHECK(all(spans, static_cast<Pos>(list.size())) == list);
      CHECK_EQ(spans.last(), list.back());
      for (std::size_t i = 1; i < spans.spans().size(); ++i) {
        CHECK(spans.spans()[i - 1].from < spans.spans()[i].from);
        CHECK(spans.spans()[i - 1].adapter != spans.spans()[i].adapter);
      }
    }
  }
}

void spans_say_how_far_they_agree() {
  AdapterSpans none, one, two;
  one.set(0, 1);
  two.set(4, 2);
  CHECK_EQ(none.same(none, 9), 9);
  CHECK_EQ(none.same(one, 9), 0);
  CHECK_EQ(none.same(two, 9), 4);
  CHECK_EQ(two.same(none, 3), 3);
  two.set(6, 0);
  AdapterSpans other = two;
  other.set(8, 1);
  CHECK_EQ(two.same(other, 20), 8);
}

void keys_tell_tokens_apart() {
  const CacheKeys keys(48);
  CHECK_EQ(keys.of(5, 0), 5);
  CHECK_EQ(keys.of(5, 2), 101);
  CHECK(keys.of(47, keys.most_adapters()) > 0);  // no overflow
}

Rig rig_with_adapters(Cell retain = 0) {
  return Rig({.config = {.max_batch_tokens = 32, .max_branches = 32, .retain = retain}});
}

BranchId prompt(Rig& rig, const Tokens& tokens, AdapterId adapter) {
  const auto [branch, reused] = rig.engine.create(tokens, adapter);
  CHECK(!rig.run(rig.engine.extend(branch, std::span(tokens).subspan(static_cast<std::size_t>(reused)))).error);
  return branch;
}

void cells_are_shared_under_one_adapter_alone() {
  Rig rig = rig_with_adapters(1024);
  rig.program->n_adapters = 2;
  const Tokens tokens = prompt_tokens(20);
  const BranchId plain = prompt(rig, tokens, 0);
  CHECK_EQ(rig.engine.create(tokens, 1).second, 0);
  const BranchId adapted = prompt(rig, tokens, 1);
  CHECK_EQ(rig.engine.create(tokens, 1).second, 19);
  CHECK_EQ(rig.engine.create(tokens, 0).second, 19);
  CHECK_EQ(rig.engine.create(tokens, 2).second, 0);
  rig.engine.close(adapted);
  rig.engine.close(plain);
  CHECK_EQ(rig.engine.n_reusable(tokens, 2), 0);
}

void what_is_retained_is_of_its_adapter() {
  Rig rig = rig_with_adapters(1024);
  rig.program->n_adapters = 2;
  const Tokens tokens = prompt_tokens(20);
  rig.engine.close(prompt(rig, tokens, 1));
  CHECK_EQ(rig.engine.n_reusable(tokens, 0), 0);
  CHECK_EQ(rig.engine.n_reusable(tokens, 2), 0);
  CHECK_EQ(rig.engine.n_reusable(tokens, 1), 19);
  const BranchId again = prompt(rig, tokens, 1);
  CHECK_EQ(rig.engine.stats().recalled, std::uint64_t{19});
  CHECK(rig.engine.branch(again).adapters.spans() == std::vector<Span>({{0, 1}}));
}

// Prompts of one moment wait for the one that came first only where they have its adapter.
void prompts_of_one_moment_are_computed_once_per_adapter() {
  Rig rig = rig_with_adapters();
  rig.program->n_adapters = 2;
  const Tokens tokens = prompt_tokens(40);
  std::vector<JobId> jobs;
  for (const AdapterId adapter : {0, 1, 2, 1, 0, 2}) {
    jobs.push_back(rig.engine.extend(rig.engine.create(tokens, adapter).first, tokens));
  }
  for (const JobId job : jobs) CHECK(!rig.run(job).error);
  CHECK_EQ(rig.engine.stats().prefilled, std::uint64_t{3 * 40 + 3});
}

void an_adapter_holds_from_the_present_end_on() {
  Rig rig = rig_with_adapters();
  rig.program->n_adapters = 1;
  const BranchId branch = prompt(rig, prompt_tokens(10), 0);
  rig.engine.set_adapter(branch, 1);
  rig.generate(branch, 4);
  CHECK(rig.engine.branch(branch).adapters.spans() == std::vector<Span>({{10, 1}}));
  const BranchId child = rig.engine.fork(branch);
  rig.engine.rollback(branch, 9);
  CHECK(rig.engine.branch(branch).adapters.empty());
  rig.engine.rollback(child, 10);
  CHECK_EQ(rig.engine.branch(child).adapters.last(), 1);
  rig.engine.adopt(branch, child);
  CHECK_EQ(rig.engine.branch(branch).adapters.last(), 1);
  for (const LogChange& change : rig.engine.take_changes()) CHECK_EQ(change.adapter, 1);
  rig.generate(branch, 3);
}

void nothing_else_is_taken() {
  Rig rig = rig_with_adapters();
  rig.program->n_adapters = 1;
  const BranchId branch = prompt(rig, prompt_tokens(10), 0);
  CHECK_THROWS(rig.engine.set_adapter(branch, 2), InvalidRange, "adapter 2 of 1", "load it");
  CHECK_THROWS(rig.engine.create({}, -1), InvalidRange, "adapter -1 of 1");
  const StoredBranch late{.log = prompt_tokens(3), .adapters = [] {
                            AdapterSpans s;
                            s.set(4, 1);
                            return s;
                          }()};
  CHECK_THROWS(rig.engine.restore({}, std::vector{late}), InvalidRange, "from position 4 on, of 3 tokens");
  rig.engine.generate(branch, {.max_tokens = 3});
  CHECK_THROWS(rig.engine.set_adapter(branch, 1), BranchBusy, "still runs");
  rig.drain();
  CHECK(rig.engine.branch(branch).adapters.empty());
}

// Any verbs with three adapters: every row of logits is what the branch alone would have.
void random_verbs_keep_adapters_apart() {
  for (unsigned seed = 0; seed < 30; ++seed) {
    Rig rig = rig_with_adapters(seed % 2 == 0 ? 1024 : 0);
    rig.program->n_adapters = 3;
    std::minstd_rand rng(seed + 1);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(rng() % std::max<std::size_t>(n, 1)); };
    std::vector<BranchId> live;
    const Tokens base = prompt_tokens(30);
    for (int verb = 0; verb < 120; ++verb) {
      if (live.empty() || (live.size() < 10 && below(4) == 0)) {
        Tokens tokens(base.begin(), base.begin() + static_cast<std::ptrdiff_t>(10 + below(20)));
        tokens.push_back(static_cast<Token>(2 + below(4)));
        live.push_back(prompt(rig, tokens, static_cast<AdapterId>(below(4))));
        continue;
      }
      const std::size_t at = below(live.size());
      const BranchId branch = live[at];
      const auto length = static_cast<std::size_t>(rig.engine.branch(branch).length());
      switch (below(8)) {
        case 0:
          rig.engine.set_adapter(branch, static_cast<AdapterId>(below(4)));
          break;
        case 1: {
          std::vector<JobId> jobs;  // neighbours in one forward
          for (const BranchId each : live)
            jobs.push_back(rig.engine.generate(each, {.max_tokens = 3, .ignore_eos = true}));
          for (const JobId job : jobs) CHECK(!rig.run(job).error);
          break;
        }
        case 2:
          rig.run(rig.engine.extend(branch, prompt_tokens(static_cast<int>(1 + below(20)), below(3))));
          break;
        case 3:
          if (live.size() < 10) live.push_back(rig.engine.fork(branch));
          break;
        case 4:
          rig.engine.rollback(branch, static_cast<std::int64_t>(1 + below(length)));
          break;
        case 5:
          rig.engine.adopt(branch, live[below(live.size())]);
          break;
        case 6:
          rig.run(rig.engine.select(branch, {{2, 3}, {4}}));
          break;
        default:
          rig.engine.close(branch);
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
      }
      for (const BranchId each : live) CHECK(!rig.run(rig.engine.logits(each)).error);
      rig.check_state();
    }
  }
}

}  // namespace

int main() {
  spans_are_a_list_in_short();
  spans_say_how_far_they_agree();
  keys_tell_tokens_apart();
  cells_are_shared_under_one_adapter_alone();
  what_is_retained_is_of_its_adapter();
  prompts_of_one_moment_are_computed_once_per_adapter();
  an_adapter_holds_from_the_present_end_on();
  nothing_else_is_taken();
  random_verbs_keep_adapters_apart();
}
