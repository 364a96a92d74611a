// Takers of sequences beside each other, up to the last one: each gets its own or is refused before anything changes,
// and whatever happens every sequence and cell has the owners that the tables say. One more taker is a row of kTakers.
#include <functional>
#include <random>
#include <string>

#include "engine/rig.h"

using namespace agentkv;
using namespace agentkv::testing;

namespace {

constexpr std::size_t kBranches = 6, kSpare = 3;

RigOptions small() {
  return {.capacity = 400,
          .max_sequences = static_cast<SeqId>(kBranches + kSpare),
          .config = {.max_batch_tokens = 32, .max_branches = static_cast<std::int32_t>(kBranches)}};
}

struct Bench {
  Bench() : rig(small()) {}

  // Every branch has what it had, and its cells are nobody else's.
  void check() {
    rig.check_state();
    for (const auto& [id, log] : logs) CHECK(rig.log(id) == log);
  }

  BranchId first() const { return logs.begin()->first; }
  void add(BranchId id) { logs[id] = rig.log(id); }

  Rig rig;
  std::map<BranchId, Tokens> logs;
  std::vector<PinId> holds;
};

struct Taker {
  const char* name;
  std::size_t branches;  // that it makes
  std::size_t holds;
  std::function<void(Bench&)> take;
};

const std::vector<Taker> kTakers = {
    {"create", 1, 0, [](Bench& b) { b.add(b.rig.engine.create(prompt_tokens(5)).first); }},
    {"fork", 1, 0, [](Bench& b) { b.add(b.rig.engine.fork(b.first())); }},
    {"three forks", 3, 0,
     [](Bench& b) {
       for (const BranchId id : b.rig.engine.fork(b.first(), 3)) b.add(id);
     }},
    {"copy", 1, 0, [](Bench& b) { b.add(b.rig.engine.copy(b.first())); }},
    {"two restored without a hold", 2, 0,
     [](Bench& b) {
       const Tokens log = b.rig.log(b.first());
       const std::vector<StoredBranch> two(2, StoredBranch{.log = Tokens(log.begin(), log.begin() + 1)});
       for (const BranchId id : b.rig.engine.restore(std::nullopt, two)) b.add(id);
     }},
    {"hold", 0, 1,
     [](Bench& b) {
       const BranchId one[] = {b.first()};
       b.holds.push_back(b.rig.engine.pinned().take(one).first.id);
     }},
    {"hold of what is unshared", 0, 1,
     [](Bench& b) { b.holds.push_back(b.rig.engine.pinned().take_unshared(b.first()).id); }},
    {"reserve", 0, 1, [](Bench& b) { b.holds.push_back(b.rig.engine.pinned().reserve(7).id); }},
    {"select", 0, 0,
     [](Bench& b) {
       const Tokens log = b.rig.log(b.first());
       const auto job = b.rig.engine.select(b.first(), {{4, 5}, {6, 7, 8}, {9, 10}, {5, 5}});
       CHECK_EQ(b.rig.run(job).scores.size(), 4u);
     }},
};

void test_a_taker_gets_its_own_or_is_refused(const Taker& taker, std::size_t live, std::size_t held) {
  Bench b;
  const BranchId trunk = b.rig.prompt(prompt_tokens(9));
  b.add(trunk);
  while (b.logs.size() < live) b.add(b.rig.engine.fork(trunk));
  while (b.holds.size() < held) b.holds.push_back(b.rig.engine.pinned().reserve(2).id);
  const bool fits = b.logs.size() + taker.branches <= kBranches && b.holds.size() + taker.holds <= kSpare;
  const Cell used = b.rig.cells->used();
  const std::uint32_t forks = b.rig.engine.branch(trunk).forks;
  bool refused = false;
  try {
    taker.take(b);
  } catch (const TooManyBranches&) {
    refused = true;
  }
  CHECK_EQ(refused, !fits);
  if (refused) {
    CHECK_EQ(b.rig.cells->used(), used);
    CHECK_EQ(b.rig.engine.branch(trunk).forks, forks);
  }
  b.rig.engine.check_owners();
  for (const PinId hold : b.holds) b.rig.engine.pinned().unpin(hold);
  for (const auto& [id, log] : b.logs) CHECK(b.rig.log(id) == log);
  b.rig.drain();
  b.rig.engine.check_owners();
}

// Twenty times as many takers as there are sequences, in random order, with some that give back.
void test_takers_by_the_hundred(unsigned seed) {
  std::mt19937 rng(seed);
  Bench b;
  b.add(b.rig.prompt(prompt_tokens(9)));
  for (int i = 0; i < 200; ++i) {
    try {
      kTakers[rng() % kTakers.size()].take(b);
    } catch (const TooManyBranches&) {
    }
    if (!b.holds.empty() && rng() % 3 == 0) {
      b.rig.engine.pinned().unpin(b.holds.back());
      b.holds.pop_back();
    }
    if (b.logs.size() > 1 && rng() % 4 == 0) {
      b.rig.engine.close(b.logs.rbegin()->first);
      b.logs.erase(std::prev(b.logs.end()));
    }
    b.rig.engine.check_owners();
    for (const auto& [id, log] : b.logs) CHECK(b.rig.log(id) == log);
  }
}

void test_books_that_do_not_agree_are_noticed() {
  Bench b;
  b.add(b.rig.prompt(prompt_tokens(9)));
  b.rig.engine.check_owners();
  b.rig.cells->seq_rm(b.rig.engine.branch(b.first()).seq, 4);  // behind the engine's back
  CHECK_THROWS(b.rig.engine.check_owners(), std::logic_error, "9 tokens");
}

}  // namespace

int main() {
  for (const Taker& taker : kTakers) {
    for (std::size_t live = 1; live <= kBranches; ++live) {
      for (std::size_t held = 0; held <= kSpare; ++held) test_a_taker_gets_its_own_or_is_refused(taker, live, held);
    }
  }
  for (unsigned seed = 0; seed < 20; ++seed) test_takers_by_the_hundred(seed);
  test_books_that_do_not_agree_are_noticed();
}
