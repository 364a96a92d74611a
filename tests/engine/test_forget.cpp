// Positions that were forgotten, windows that let cells go, and tokens that others gave way to: whatever verbs come in
// whatever order, a branch goes on as one that was computed fresh from its tokens and what it forgot.
#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <string>

#include "engine/deep_runner.h"
#include "engine/rig.h"

using namespace agentkv;
using namespace agentkv::testing;

namespace {

constexpr Token kVocab = 32;

struct Known {
  Tokens log;
  std::vector<Forgotten> forgotten;

  void roll_back(Pos length, bool keeps) {
    if (length == static_cast<Pos>(log.size())) return;
    log.resize(static_cast<std::size_t>(length));
    std::erase_if(forgotten, [&](const Forgotten& gone) { return gone.at > length && !gone.for_room && !keeps; });
    for (Forgotten& gone : forgotten) {
      if (gone.at > length) gone = {gone.first, std::min(gone.last, length - 1), length, gone.for_room};
    }
    std::erase_if(forgotten, [](const Forgotten& gone) { return gone.first >= gone.last; });
  }
};

class Play {
 public:
  Play(unsigned seed, Window window)
      : random_(seed),
        window_(window),
        cells_(std::make_shared<Cells>(draw(0, 1) == 0          ? 400
                                       : window_.groups.empty() ? 150
                                                                : 1500,
                                       12)),
        runner_(std::make_shared<DeepRunner>(
            cells_, RunnerInfo{.vocab_size = kVocab, .max_tokens = draw(3, 40), .max_logits = draw(1, 6)}, window)),
        engine_(runner_, cells_, vocabulary(),
                {.max_batch_tokens = draw(3, 40), .max_branches = 6, .retain = draw(0, 1) * 500, .window = window}) {
    runner_->fails = [this] { return draw(0, 25) == 0; };
  }

  void run(int verbs) {
    for (int i = 0; i < verbs; ++i) {
      verb();
      if (draw(0, 3) == 0) check(any());
    }
    while (!known_.empty()) close(known_.begin()->first);
    while (!away_.empty()) come_back();
    CHECK_EQ(cells_->used(), 0);
    counts["refed"] += static_cast<int>(engine_.stats().refed);
    counts["reused"] += static_cast<int>(engine_.stats().reused);
    counts["discarded"] += static_cast<int>(runner_->discarded());
  }

  static inline std::map<std::string, int> counts;

 private:
  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  static Vocabulary vocabulary() {
    const std::vector<std::string_view> bytes(kVocab, "a");
    return Vocabulary(kVocab, bytes, Tokens{}, Tokens{});
  }

  BranchId any() {
    if (known_.empty()) add(engine_.create().first, {});
    return std::next(known_.begin(), draw(0, static_cast<int>(known_.size()) - 1))->first;
  }

  void add(BranchId id, Known known) { known_[id] = std::move(known); }

  // Runs a job to its end; false where it failed, or was given up in the middle.
  bool done(JobId job, Finished& out) {
    for (;;) {
      if (draw(0, 40) == 0) engine_.cancel(job);
      const StepReport report = engine_.step();
      CHECK(!report.idle);
      for (const Finished& finished : report.finished) {
        if (finished.job != job) continue;
        out = finished;
        counts[out.error ? "failed" : "ended"] += 1;
        return !out.error && !(out.finish_reason && std::string(out.finish_reason) == "cancelled");
      }
    }
  }

  void verb() {
    const BranchId id = any();
    Known& known = known_[id];
    const auto length = static_cast<Pos>(known.log.size());
    try {
      switch (draw(0, 13)) {
        case 0:
        case 1:
          return extend(id, draw(1, window_.groups.empty() ? 60 : 150));
        case 2:
        case 3:
          return generate(id);
        case 4:
        case 5: {
          const Pos to = draw(0, 1) == 0 ? draw(0, length) : std::max(length - draw(0, 5), 0);
          const bool keeps = draw(0, 4) == 0;
          engine_.rollback(id, to, {}, keeps);
          return known.roll_back(to, keeps);
        }
        case 6:
        case 7: {
          const Pos first = draw(0, length), last = draw(first, length + 1);
          const bool for_room = draw(0, 1) == 0;
          engine_.forget(id, first, last, for_room);
          if (first < last) known.forgotten.push_back({first, last, length, for_room});
          return void(++counts["forgot"]);
        }
        case 8: {
          const Pos first = draw(0, length), last = std::min(first + draw(0, 30), length);
          const Tokens tokens = some(draw(0, 3));
          engine_.replace(id, first, last, tokens);
          return replaced(known, first, last, tokens);
        }
        case 9:
          return add(engine_.fork(id), known);
        case 10: {
          const BranchId other = any();
          engine_.adopt(id, other);
          known = Known(known_[other]);
          return;
        }
        case 11:
        case 12:
          return open_alike();
        default:
          if (draw(0, 2) == 0) engine_.compact();
          if (draw(0, 3) == 0) store(id);
          if (draw(0, 2) == 0) offload({id, any(), any()});
          if (!away_.empty() && draw(0, 1) == 0) come_back();
          if (draw(0, 1) == 0) close(id);
      }
    } catch (const Error&) {
      ++counts["refused"];
    }
  }

  Tokens some(int n) {
    Tokens tokens;
    while (n-- > 0) tokens.push_back(draw(0, 3));  // few, so that prompts begin alike
    return tokens;
  }

  void extend(BranchId id, int n) {
    const Tokens tokens = some(n);
    Finished out;
    if (known_[id].log.empty() && draw(0, 1) == 0) {
      const auto [fresh, reused] = engine_.create(tokens);
      add(fresh, {Tokens(tokens.begin(), tokens.begin() + reused), {}});
      if (done(engine_.extend(fresh, std::span(tokens).subspan(static_cast<std::size_t>(reused))), out)) {
        known_[fresh].log = tokens;
      }
    } else if (done(engine_.extend(id, tokens), out)) {
      Tokens& log = known_[id].log;
      log.insert(log.end(), tokens.begin(), tokens.end());
    }
  }

  // Two prompts at once, both of which begin as a history did before.
  void open_alike() {
    Tokens start = past_;
    if (!start.empty() && draw(0, 1) == 0)
      start.resize(static_cast<std::size_t>(draw(1, static_cast<int>(start.size()))));
    std::map<JobId, std::pair<BranchId, Tokens>> jobs;
    for (int i = 0; i < 2 && known_.size() < 6; ++i) {
      Tokens tokens = start;
      for (const Token token : some(draw(1, 30))) tokens.push_back(token);
      const auto [id, reused] = engine_.create(tokens);
      add(id, {Tokens(tokens.begin(), tokens.begin() + reused), {}});
      counts["reused far"] += reused > 60;
      try {
        jobs[engine_.extend(id, std::span(tokens).subspan(static_cast<std::size_t>(reused)))] = {id, tokens};
      } catch (const ContextFull&) {
        ++counts["refused"];
      }
    }
    while (!jobs.empty()) {
      const StepReport report = engine_.step();
      CHECK(!report.idle);
      for (const Finished& finished : report.finished) {
        const auto& [id, tokens] = jobs.at(finished.job);
        if (!finished.error) known_[id].log = past_ = tokens;
        jobs.erase(finished.job);
      }
    }
  }

  void generate(BranchId id) {
    Finished out;
    done(engine_.generate(id, {.max_tokens = draw(1, 8), .wait_for_room = false}), out);
    for (const Token token : out.tokens) {
      if (!out.error) CHECK_EQ(token, likeliest(known_[id]));
      known_[id].log.push_back(token);
    }
  }

  Token likeliest(const Known& known) {
    const auto row = deep_logits(known.log, known.forgotten, window_, kVocab);
    return static_cast<Token>(std::max_element(row.begin(), row.end()) - row.begin());
  }

  // Out of the cache for a while, alone or with others, as far as nobody else has what they have.
  void offload(std::vector<BranchId> ids) {
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    const auto hold = engine_.pinned().take_unshared(ids);
    const Cell used = cells_->used();
    engine_.offload(ids, hold.id);
    CHECK_EQ(cells_->used(), used);  // the pin has them
    away_.push_back({hold.id, ids});
    counts["offloaded"] += hold.rows > 0;
    counts["offloaded together"] += hold.rows > 0 && ids.size() > 1;
  }

  // The last ones that are away come back, or some are lost.
  void come_back() {
    const auto [pin, ids] = away_.back();
    away_.pop_back();
    for (const BranchId id : ids) {
      if (!known_.contains(id)) continue;
      const bool lost = draw(0, 3) == 0;
      const Pos rows = engine_.n_offloaded(id), before = engine_.branch(id).n_cached;
      engine_.reload(id, lost ? std::nullopt : std::optional(pin));
      CHECK(lost ? engine_.branch(id).n_cached <= before : engine_.branch(id).n_cached >= before + rows);
      counts[lost ? "lost" : "came back"] += rows > 0;
    }
    engine_.pinned().unpin(pin);
  }

  // Out of the cache and back into it, as one that is saved.
  void store(BranchId id) {
    PinnedCells& held = engine_.pinned();
    const BranchId one[] = {id};
    const auto [taken, images] = held.take(one);
    if (engine_.branches().size() < 6) {
      add(engine_.restore(taken.id, images)[0], known_[id]);
      ++counts["stored"];
    }
    held.unpin(taken.id);
  }

  static void replaced(Known& known, Pos first, Pos last, const Tokens& tokens) {
    known.log.erase(known.log.begin() + first, known.log.begin() + last);
    known.log.insert(known.log.begin() + first, tokens.begin(), tokens.end());
    std::erase_if(known.forgotten, [&](const Forgotten& gone) { return gone.first >= first; });
    for (Forgotten& gone : known.forgotten)
      gone = {gone.first, std::min(gone.last, first), std::min(gone.at, first + 1), gone.for_room};
    ++counts["replaced"];
  }

  void close(BranchId id) {
    if (known_[id].log.size() > 100) past_ = known_[id].log;
    engine_.close(id);
    known_.erase(id);
  }

  void check(BranchId id) {
    const Known& known = known_[id];
    CHECK(engine_.branch(id).log == known.log);
    CHECK(engine_.branch(id).n_cached <= engine_.branch(id).length());
    if (!window_.groups.empty() && !engine_.branch(id).offloaded())
      CHECK_EQ(engine_.branches().covered(engine_.branch(id)), engine_.branch(id).n_cached);
    if (known.log.empty()) return;
    Finished out;
    try {
      if (!done(engine_.logits(id), out)) return;
    } catch (const Error&) {
      return;
    }
    CHECK(out.logits == deep_logits(known.log, known.forgotten, window_, kVocab));
    ++counts["checked"];
    if (window_.length > 0) {
      const auto held = engine_.branch(id).n_cached;
      Cell cells = 0;
      for (const Run& run : cells_->seq_runs(engine_.branch(id).seq)) cells += run.length;
      CHECK(cells <= std::min(held, window_.sinks + window_.length + 64 + 64));
    }
  }

  std::mt19937 random_;
  const Window window_;
  std::shared_ptr<Cells> cells_;
  std::shared_ptr<DeepRunner> runner_;
  Engine engine_;
  std::map<BranchId, Known> known_;
  Tokens past_;  // a history that was, or still is
  struct Away {
    PinId pin;
    std::vector<BranchId> ids;
  };
  std::vector<Away> away_;
};

Window window_of(Pos length, Pos sinks) { return {length, sinks, static_cast<Pos>(kLayers) * (length - 1), {}}; }

// The first layer has a window, the second a longer one or none, and the last looks at everything.
Window layers_with(Pos window, Pos longer) {
  Window out;
  out.groups = {window};
  if (longer > 0) out.groups.push_back(window + longer);
  return out;
}

void what_it_refuses_changes_nothing() {
  Rig rig;
  const BranchId branch = rig.prompt(prompt_tokens(10));
  for (const auto& [first, last] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {-1, 3}, {4, 3}, {2, 10}, {2, 11}, {std::int64_t{1} << 40, (std::int64_t{1} << 40) + 1}, {0, INT64_MAX}}) {
    CHECK_THROWS(rig.engine.forget(branch, first, last), InvalidRange);
    CHECK_THROWS(rig.engine.replace(branch, first, last, {}), InvalidRange);
  }
  const Tokens bad{48};
  CHECK_THROWS(rig.engine.replace(branch, 1, 2, bad), InvalidToken);
  CHECK_EQ(rig.engine.branch(branch).length(), 10);
  CHECK_EQ(rig.cells->used(), 10);
  CHECK_EQ(rig.engine.forget(branch, 3, 3), 0);
  CHECK(rig.engine.branch(branch).forgotten.empty());
  CHECK_EQ(rig.engine.forget(branch, 2, 5), 4);  // and the last one, which is fed again
}

void a_branch_owns_what_no_other_one_holds() {
  Rig rig;
  const BranchId branch = rig.prompt(prompt_tokens(10));
  CHECK_EQ(rig.engine.n_exclusive_cells(branch, 0), 10);
  CHECK_EQ(rig.engine.n_exclusive_cells(branch, 4), 6);
  CHECK_EQ(rig.engine.n_exclusive_cells(branch, 11), 0);
  CHECK_THROWS(rig.engine.n_exclusive_cells(branch, -1), InvalidRange);
  rig.engine.forget(branch, 5, 7);  // takes the last cell, too, which is fed again
  CHECK_EQ(rig.engine.n_exclusive_cells(branch, 4), 3);
  const BranchId fork = rig.engine.fork(branch);
  CHECK_EQ(rig.engine.n_exclusive_cells(branch, 0), 0);
  rig.engine.rollback(fork, 8);  // and gives its last cell back, too
  CHECK_EQ(rig.engine.n_exclusive_cells(branch, 0), 2);
  const Cell before = rig.cells->used();
  const Cell owned = rig.engine.n_exclusive_cells(branch, 3);
  rig.engine.rollback(branch, 3);
  CHECK_EQ(before - rig.cells->used(), owned);
}

// A generation that finds no room waits for it, and goes on as if there had been some.
void a_generation_waits_for_room() {
  const auto cells = std::make_shared<Cells>(16, 4);
  const auto runner = std::make_shared<DeepRunner>(cells, RunnerInfo{kVocab, 16, 4}, Window{});
  const std::vector<std::string_view> bytes(kVocab, "a");
  Engine engine(runner, cells, Vocabulary(kVocab, bytes, Tokens{}, Tokens{}), {.max_branches = 2, .max_positions = 24});
  const BranchId branch = engine.create().first;
  engine.extend(branch, prompt_tokens(10, 1, kVocab));
  while (!engine.step().idle) continue;
  const JobId job = engine.generate(branch, {.max_tokens = 30, .wait_for_room = true});
  const auto until_full = [&] {
    StepReport report;
    while (report.out_of_room.empty()) {
      report = engine.step();
      CHECK(!report.idle && report.finished.empty());
    }
    CHECK(report.out_of_room == std::vector<JobId>{job});
    CHECK(engine.step().idle);  // nothing happens until it goes on
    return engine.branch(branch).length();
  };
  CHECK_EQ(until_full(), 17);  // 16 cells, and a token that is in none yet
  CHECK_THROWS(engine.rollback(branch, 3), BranchBusy);
  CHECK_EQ(engine.forget(branch, 2, 7), 5);
  engine.resume(job, true);
  CHECK_EQ(until_full(), 22);
  CHECK_EQ(engine.forget(branch, 7, 12), 5);
  engine.resume(job, true);
  CHECK_EQ(until_full(), 24);                              // for want of positions
  const auto pin = engine.pinned().take_unshared(branch);  // others may take its cells meanwhile
  engine.offload(branch, pin.id);
  CHECK_THROWS(engine.replace(branch, 2, 12, {}), BranchBusy);
  engine.resume(job, true);
  CHECK_EQ(until_full(), 24);  // it waits until they are back
  engine.reload(branch, pin.id);
  engine.pinned().unpin(pin.id);
  engine.replace(branch, 2, 12, {});
  const Tokens before = engine.branch(branch).log;
  CHECK_EQ(static_cast<int>(before.size()), 14);
  engine.resume(job, true);
  CHECK_EQ(until_full(), 17);
  const Tokens after = engine.branch(branch).log;
  for (std::size_t length = 15; length < after.size(); ++length) {  // the 15th was drawn before tokens left
    const Tokens history(after.begin(), after.begin() + static_cast<std::ptrdiff_t>(length));
    const auto row = deep_logits(history, {}, {}, kVocab);
    CHECK_EQ(after[length], static_cast<Token>(std::max_element(row.begin(), row.end()) - row.begin()));
  }
  engine.resume(job, false);
  const StepReport report = engine.step();
  CHECK_EQ(std::string(report.finished.at(0).finish_reason), "context_full");
  CHECK_EQ(report.finished[0].tokens.size(), 17u);
  CHECK_EQ(report.finished[0].prompt_tokens, 0);
  engine.resume(job, true);  // one that has ended is left alone
}

}  // namespace

int main() {
  what_it_refuses_changes_nothing();
  a_branch_owns_what_no_other_one_holds();
  a_generation_waits_for_room();
  for (unsigned seed = 0; seed < 60; ++seed) {
    Play(seed, {}).run(150);
    Play(seed, window_of(1 + static_cast<Pos>(seed % 40), static_cast<Pos>(seed % 5))).run(150);
    Play(seed, layers_with(1 + static_cast<Pos>(seed % 40), static_cast<Pos>(seed % 3 * 17))).run(150);
  }
  for (const char* what : {"refed", "reused", "checked", "forgot", "replaced", "stored", "failed", "refused",
                           "discarded", "reused far", "offloaded", "offloaded together", "lost", "came back"}) {
    std::printf("%s: %d\n", what, Play::counts[what]);
    CHECK(Play::counts[what] > 20);
  }
}
