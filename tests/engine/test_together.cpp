// Prompts that are computed together and begin alike, on branches whose histories are alike or not: whoever takes what
// another one computed goes on as one that was computed by itself, whatever ends the other one meanwhile.
#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <random>
#include <string>

#include "engine/deep_runner.h"
#include "engine/rig.h"

using namespace agentkv;
using namespace agentkv::testing;

namespace {

constexpr Token kVocab = 32;
constexpr std::size_t kMostBranches = 8;

Window layers_with(Pos window) {
  Window out;
  out.groups = {window};
  return out;
}

struct Known {
  Tokens log;
  std::vector<Forgotten> forgotten;
  std::optional<JobId> job = {};
  Tokens added = {};  // by its job, an extend
  bool generates = false;
};

class Play {
 public:
  Play(unsigned seed, Window window)
      : random_(seed),
        window_(std::move(window)),
        cells_(std::make_shared<Cells>(one_of({150, 600, 4000}), 14)),
        runner_(std::make_shared<DeepRunner>(
            cells_, RunnerInfo{.vocab_size = kVocab, .max_tokens = draw(3, 40), .max_logits = draw(1, 6)}, window_)),
        engine_(runner_, cells_, vocabulary(),
                {.max_batch_tokens = draw(3, 60),
                 .max_branches = static_cast<std::int32_t>(kMostBranches),
                 .retain = draw(0, 1) * 500,
                 .window = window_}) {
    runner_->fails = [this] { return draw(0, 200) == 0; };
    story_ = some(700);
    other_ = story_;
    for (std::size_t i = static_cast<std::size_t>(draw(1, 699)); i < other_.size(); ++i) other_[i] = draw(0, 3);
  }

  void run(int turns) {
    for (int i = 0; i < turns; ++i) {
      for (int n = draw(0, 4); n > 0; --n) verb();
      step();
      if (draw(0, 15) == 0) rest();
    }
    rest();
    while (!known_.empty()) close(known_.begin()->first);
    while (!away_.empty()) come_back();
    CHECK_EQ(cells_->used(), 0);
    counts["reused"] += static_cast<int>(engine_.stats().reused);
    counts["refed"] += static_cast<int>(engine_.stats().refed);
    counts["discarded"] += static_cast<int>(runner_->discarded());
  }

  static inline std::map<std::string, int> counts;

 private:
  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  int one_of(std::initializer_list<int> values) { return values.begin()[draw(0, static_cast<int>(values.size()) - 1)]; }

  static Vocabulary vocabulary() {
    const std::vector<std::string_view> bytes(kVocab, "a");
    return Vocabulary(kVocab, bytes, Tokens{}, Tokens{});
  }

  Tokens some(int n) {
    Tokens tokens;
    while (n-- > 0) tokens.push_back(draw(0, 3));
    return tokens;
  }

  BranchId any() {
    if (known_.empty()) add(engine_.create().first, {});
    return std::next(known_.begin(), draw(0, static_cast<int>(known_.size()) - 1))->first;
  }

  void add(BranchId id, Known known) {
    known.job = {};
    known_[id] = std::move(known);
  }

  // Until nothing runs; then every branch is compared with one that was computed by itself.
  void rest() {
    const auto runs = [](const auto& entry) { return entry.second.job.has_value(); };
    while (std::any_of(known_.begin(), known_.end(), runs)) step();
    const BranchId id = any();
    Known& known = known_[id];
    if (known.log.empty()) return;
    try {
      known.added = {};
      known.generates = false;
      known.job = engine_.logits(id);
    } catch (const Error&) {
      return;
    }
    while (known.job) step();
  }

  void step() {
    const StepReport report = engine_.step();
    engine_.check_owners();
    bool waits = false;
    for (const auto& [id, known] : known_) waits = waits || known.job;
    CHECK(!report.idle || !waits);
    ++counts["steps"];
    for (const Finished& finished : report.finished) settle(finished);
  }

  void settle(const Finished& finished) {
    const auto found =
        std::find_if(known_.begin(), known_.end(), [&](const auto& entry) { return entry.second.job == finished.job; });
    if (found == known_.end()) return;
    auto& [id, known] = *found;
    known.job = {};
    const bool cancelled = finished.finish_reason && std::string(finished.finish_reason) == "cancelled";
    const bool full = finished.error && finished.error->kind == ErrorKind::ContextFull;
    CHECK(!finished.error || full || finished.error->message.find("chance") != std::string::npos);
    ++counts[full ? "full" : finished.error ? "failed" : cancelled ? "cancelled" : finished.kind];
    if (known.generates) {
      known.log.insert(known.log.end(), finished.tokens.begin(), finished.tokens.end());
    } else if (!finished.error && !cancelled) {
      known.log.insert(known.log.end(), known.added.begin(), known.added.end());
    }
    CHECK(engine_.branch(id).log == known.log);
    if (!finished.logits.empty()) {
      CHECK(finished.logits == deep_logits(known.log, known.forgotten, window_, kVocab));
      ++counts["checked"];
    } else if (const LogitsRow row = engine_.branch(id).next_logits; row && draw(0, 3) == 0) {
      CHECK(*row == deep_logits(known.log, known.forgotten, window_, kVocab));
      ++counts["checked"];
    }
  }

  // What goes on as one of the stories does, as far as it does; or what another branch is being extended by.
  Tokens next(const Known& known) {
    const auto length = known.log.size();
    const int n = one_of({1, 20, 60, 200, 500});
    Tokens tokens;
    const Tokens& story = draw(0, 2) == 0 ? other_ : story_;
    if (const auto& theirs = known_[any()]; draw(0, 2) == 0 && theirs.job && !theirs.added.empty()) {
      tokens = theirs.added;
      if (draw(0, 1) == 0) tokens.resize(static_cast<std::size_t>(draw(1, static_cast<int>(tokens.size()))));
    } else if (length < story.size() && std::equal(known.log.begin(), known.log.end(), story.begin())) {
      const auto from = story.begin() + static_cast<std::ptrdiff_t>(length);
      tokens.assign(from, from + std::min<std::ptrdiff_t>(n, story.end() - from));
    } else {
      tokens.assign(story_.begin(), story_.begin() + n);
    }
    if (draw(0, 1) == 0) {
      for (const Token token : some(one_of({1, 5, 40}))) tokens.push_back(token);
    }
    return tokens;
  }

  void verb() {
    const BranchId id = any();
    Known& known = known_[id];
    const auto length = static_cast<Pos>(known.log.size());
    try {
      if (known.job) {
        if (draw(0, 12) == 0) engine_.cancel(*known.job);
        if (draw(0, 40) == 0) close(id);
        return;
      }
      switch (draw(0, 20)) {
        default:
          if (length > 900) return void(close(id));
          known.added = next(known);
          known.generates = false;
          known.job = engine_.extend(id, known.added);
          return;
        case 0:
        case 1:
          if (known_.size() >= kMostBranches) return close(id);
          if (draw(0, 1) == 0) return add(engine_.create().first, {});
          return prompt(next({}));
        case 2:
          return add(engine_.fork(id), known);
        case 3:
        case 4: {
          const Pos to = draw(0, 1) == 0 ? draw(0, length) : std::max(length - draw(0, 5), 0);
          engine_.rollback(id, to);
          if (to < length) std::erase_if(known.forgotten, [&](const Forgotten& gone) { return gone.at > to; });
          known.log.resize(static_cast<std::size_t>(to));
          return;
        }
        case 5: {
          const BranchId other = any();
          if (known_[other].job) return;
          engine_.adopt(id, other);
          return add(id, Known(known_[other]));
        }
        case 6:
          return close(id);
        case 7: {
          if (draw(0, 2) > 0 || length < 2) return;
          const Pos first = draw(0, length - 2), last = draw(first + 1, length - 1);
          engine_.forget(id, first, last);
          known.forgotten.push_back({first, last, length});
          return void(++counts["forgot"]);
        }
        case 8:
          if (draw(0, 1) == 0) return store(id);
          return offload(id);
        case 9:
          if (!away_.empty()) come_back();
          if (draw(0, 3) == 0) engine_.compact();
          return;
        case 10:
          known.added = {};
          known.job = engine_.generate(id, {.max_tokens = draw(1, 12)});
          known.generates = true;
          return;
        case 11:
          known.added = {};
          known.generates = false;
          known.job = draw(0, 1) == 0 ? engine_.logits(id) : engine_.select(id, {some(3), some(30), some(1)});
          return;
      }
    } catch (const Error&) {
      ++counts["refused"];
    }
  }

  void prompt(const Tokens& tokens) {
    const auto [id, reused] = engine_.create(tokens);
    add(id, {Tokens(tokens.begin(), tokens.begin() + reused), {}});
    Known& known = known_[id];
    known.added.assign(tokens.begin() + reused, tokens.end());
    known.generates = false;
    known.job = engine_.extend(id, known.added);
  }

  void store(BranchId id) {
    if (known_.size() >= kMostBranches) return;
    PinnedCells& held = engine_.pinned();
    const BranchId one[] = {id};
    const auto [taken, images] = held.take(one);
    add(engine_.restore(taken.id, images)[0], known_[id]);
    held.unpin(taken.id);
    ++counts["stored"];
  }

  struct Away {
    PinId pin;
    BranchId id;
  };

  void offload(BranchId id) {
    const auto hold = engine_.pinned().take_unshared(id);
    engine_.offload(id, hold.id);
    away_.push_back({hold.id, id});
    ++counts["offloaded"];
  }

  void come_back() {
    const auto [pin, id] = away_.back();
    away_.pop_back();
    if (known_.contains(id)) engine_.reload(id, draw(0, 3) == 0 ? std::nullopt : std::optional(pin));
    engine_.pinned().unpin(pin);
  }

  void close(BranchId id) {
    engine_.close(id);
    known_.erase(id);
  }

  std::mt19937 random_;
  const Window window_;
  const std::shared_ptr<Cells> cells_;
  const std::shared_ptr<DeepRunner> runner_;
  Engine engine_;
  std::map<BranchId, Known> known_;
  Tokens story_, other_;
  std::vector<Away> away_;
};

// An engine over a model of several layers, some of which may have a window.
struct Deep {
  Deep(Cell capacity, RunnerInfo info, EngineConfig config)
      : window(config.window),
        cells(std::make_shared<Cells>(capacity, 16)),
        engine(std::make_shared<DeepRunner>(cells, info, window), cells, vocabulary(info), std::move(config)) {}

  void step() {
    for (Finished& each : engine.step().finished) finished[each.job] = std::move(each);
  }

  Finished run(JobId job) {
    while (!finished.contains(job)) step();
    CHECK(!finished[job].error);
    return finished[job];
  }

  // The logits at its end are those of one that was computed by itself.
  void check(BranchId id, const Tokens& tokens) {
    CHECK(engine.branch(id).log == tokens);
    CHECK(run(engine.logits(id)).logits == deep_logits(tokens, {}, window, kVocab));
    engine.check_owners();
  }

  static Vocabulary vocabulary(const RunnerInfo& info) {
    const std::vector<std::string_view> bytes(static_cast<std::size_t>(info.vocab_size), "a");
    return Vocabulary(info.vocab_size, bytes, Tokens{}, Tokens{});
  }

  const Window window;
  const std::shared_ptr<Cells> cells;
  Engine engine;
  std::map<JobId, Finished> finished;
};

// Layers of the one that is ahead have left cells at which the other one's next rows look: its own are a better basis.
void one_that_is_far_ahead_may_have_less_to_give() {
  for (const Pos begun : {20, 100, 200}) {
    Deep deep(4000, {kVocab, 32, 4}, {.max_batch_tokens = 32, .max_branches = 6, .window = layers_with(24)});
    const Tokens begins = prompt_tokens(begun, 1, kVocab), goes_on = prompt_tokens(900, 2, kVocab);
    const BranchId ahead = deep.engine.create().first, behind = deep.engine.create().first;
    for (const BranchId id : {ahead, behind}) deep.run(deep.engine.extend(id, begins));
    const JobId longer = deep.engine.extend(ahead, goes_on);
    while (deep.engine.branch(ahead).n_cached < begun + 600) deep.step();
    const Tokens alike = joined(Rig::first(goes_on, 20), prompt_tokens(30, 3, kVocab));
    deep.run(deep.engine.extend(behind, alike));
    deep.check(behind, joined(begins, alike));
    deep.run(longer);
    deep.check(ahead, joined(begins, goes_on));
  }
}

// The one that is waited for has the same tokens, in cells that somebody loaded: they may be of anything.
void cells_that_were_loaded_meanwhile_are_not_taken() {
  Deep deep(400, {kVocab, 16, 4}, {.max_batch_tokens = 16, .max_branches = 6});
  const Tokens tokens = prompt_tokens(100, 1, kVocab), others = prompt_tokens(100, 2, kVocab);
  const BranchId saved = deep.engine.create().first;
  deep.run(deep.engine.extend(saved, others));
  const BranchId one[] = {saved};
  auto [pin, images] = deep.engine.pinned().take(one);
  images[0].log = tokens;
  images[0].next_logits = {};
  const BranchId loaded = deep.engine.restore(pin.id, images)[0];
  deep.engine.pinned().unpin(pin.id);
  const BranchId ahead = deep.engine.create().first, behind = deep.engine.create().first;
  const JobId given_up = deep.engine.extend(ahead, tokens);
  const JobId waits = deep.engine.extend(behind, joined(tokens, {3}));
  deep.step();
  deep.engine.cancel(given_up);
  deep.engine.adopt(ahead, loaded);
  deep.run(waits);
  deep.check(behind, joined(tokens, {3}));
}

// Rows were promised the cells that a longer prompt of the past had.
void what_is_recalled_takes_no_cells_from_rows_of_the_same_step() {
  constexpr Pos before = 21, past = 106, shared = 50, plain = 73;
  Deep deep(before + past + plain, {kVocab, 64, 64}, {.max_batch_tokens = 40, .max_branches = 8, .retain = 400});
  const BranchId scored = deep.engine.create().first, closed = deep.engine.create().first;
  const Tokens tokens = prompt_tokens(past, 1, kVocab);
  deep.run(deep.engine.extend(scored, prompt_tokens(before, 5, kVocab)));
  deep.run(deep.engine.extend(closed, tokens));
  const BranchId ahead = deep.engine.create().first, behind = deep.engine.create().first;
  deep.engine.close(closed);
  std::vector<Tokens> choices;  // small ones, until the prompt is there that is waited for
  for (std::uint64_t i = 0; i < 30; ++i) choices.push_back(prompt_tokens(i < 3 ? 24 : 100, 7 + i, kVocab));
  const JobId select = deep.engine.select(scored, choices);
  const JobId first = deep.engine.extend(ahead, Rig::first(tokens, shared));
  const JobId waits = deep.engine.extend(behind, joined(tokens, {3}));
  for (const JobId job : {first, select, waits}) deep.run(job);
  deep.check(behind, joined(tokens, {3}));
}

// What another one is computing takes no cells of whoever begins alike, however full the cache is by then.
void one_that_comes_later_needs_no_cells_for_what_it_is_to_share() {
  Deep deep(250, {kVocab, 32, 4}, {.max_batch_tokens = 32, .max_branches = 6});
  const Tokens begins = prompt_tokens(10, 1, kVocab), asked = prompt_tokens(200, 2, kVocab);
  const BranchId trunk = deep.engine.create().first;
  deep.run(deep.engine.extend(trunk, begins));
  const std::vector<BranchId> forks = deep.engine.fork(trunk, 3);
  std::vector<JobId> jobs;
  const auto question = [&](BranchId id) { return joined(asked, {static_cast<Token>(id)}); };
  for (const BranchId id : forks) {
    jobs.push_back(deep.engine.extend(id, question(id)));
    for (int i = 0; i < 3; ++i) deep.step();
  }
  for (const JobId job : jobs) deep.run(job);
  CHECK_EQ(deep.cells->used(), 10 + 200 + 3);
  for (const BranchId id : forks) deep.check(id, joined(begins, question(id)));
  CHECK_THROWS(deep.engine.extend(trunk, prompt_tokens(100, 3, kVocab)), ContextFull);
}

}  // namespace

int main() {
  one_that_comes_later_needs_no_cells_for_what_it_is_to_share();
  one_that_is_far_ahead_may_have_less_to_give();
  cells_that_were_loaded_meanwhile_are_not_taken();
  what_is_recalled_takes_no_cells_from_rows_of_the_same_step();
  for (unsigned seed = 0; seed < 40; ++seed) {
    Play(seed, {}).run(150);
    Play(seed, layers_with(1 + static_cast<Pos>(seed % 40))).run(150);
  }
  for (const char* what : {"extend", "generate", "logits", "select", "cancelled", "failed", "full", "refused",
                           "checked", "reused", "refed", "discarded", "stored", "offloaded", "forgot"}) {
    std::printf("%s: %d\n", what, Play::counts[what]);
    CHECK(Play::counts[what] > 20);
  }
}
