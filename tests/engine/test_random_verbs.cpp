// Random verbs, faults and cancellations on a small cache. The rig checks the state after every step; each finished
// generation must be what a model without any cache samples, and no job may change another branch's tokens.
#include <random>

#include "engine/rig.h"

using namespace agentkv;
using namespace agentkv::testing;

namespace {

struct Running {
  BranchId branch;
  Tokens before;      // the branch's log when the job began
  Tokens added = {};  // what an extend adds
  GenerateOptions options = {};
  std::uint64_t stream = 0;
};

class Session {
 public:
  explicit Session(unsigned seed) : rng_(seed), rig_(options(seed)) {
    rig_.program->fault = [this](std::span<const std::int64_t>) {
      if (pick(12) == 0) throw ForwardFailed("chance");
    };
  }

  void run(int verbs) {
    for (int i = 0; i < verbs; ++i) {
      verb();
      check_copies();
      rig_.check_state();
      while (pick(3) != 0) step();
    }
    rig_.program->fault = nullptr;
    for (const PinId hold : holds_) rig_.engine.pinned().unpin(hold);
    while (!rig_.step().idle) check_finished();
    check_finished();
    CHECK(running_.empty());
    outcomes["retried"] += static_cast<int>(rig_.engine.stats().retries);
    outcomes["reused"] += static_cast<int>(rig_.engine.stats().reused);
    outcomes["recalled"] += static_cast<int>(rig_.engine.stats().recalled);
  }

  // What came of the jobs of all sessions, so that a run which tries too little is noticed.
  static inline std::map<std::string, int> outcomes;

 private:
  static RigOptions options(unsigned seed) {
    RigOptions o;
    o.capacity = 120;
    o.max_sequences = seed % 2 ? 8 : 12;
    const Cell retain = seed % 3 == 0 ? 0 : seed % 3 == 1 ? 20 : 120;
    o.config = {.max_batch_tokens = 4 + static_cast<int>(seed % 20), .max_branches = 8, .retain = retain};
    o.info.max_tokens = 3 + static_cast<int>(seed % 30);
    o.info.max_logits = 1 + static_cast<int>(seed % 5);
    return o;
  }

  std::size_t pick(std::size_t n) { return rng_() % n; }

  BranchId any_branch() {
    const auto& all = rig_.engine.branches().all();
    if (all.empty()) return rig_.engine.create().first;
    return std::next(all.begin(), static_cast<std::ptrdiff_t>(pick(all.size())))->first;
  }

  void step() {
    rig_.step();
    check_finished();
    check_copies();
  }

  // What is told of the branches adds up to their logs.
  void check_copies() {
    for (const auto& [id, branch] : rig_.engine.branches().all()) {
      const Tokens& copy = copies_[id];
      if (!branch->job) CHECK(copy == branch->log);
    }
  }

  void verb() {
    const BranchId id = any_branch();
    const Tokens log = rig_.log(id);
    try {
      switch (pick(11)) {
        case 10:
          return hold(id);
        case 0:
          return create();
        case 1:
          rig_.engine.fork(id);
          return;
        case 2:
          rig_.engine.rollback(id, static_cast<std::int64_t>(pick(log.size() + 1)));
          return;
        case 3:
          rig_.engine.adopt(id, any_branch());
          return;
        case 4:
          if (pick(2)) rig_.engine.close(id);
          if (pick(4) == 0) rig_.engine.compact();
          return;
        case 5:
          if (!running_.empty()) cancel_one();
          return;
        case 6: {
          const Tokens added = prompt_tokens(static_cast<int>(pick(30)), rng_());
          started(rig_.engine.extend(id, added), {.branch = id, .before = log, .added = added});
          return;
        }
        case 7:
          started(rig_.engine.select(id, {prompt_tokens(1 + static_cast<int>(pick(6)), rng_()), {4}, {5, 6}}),
                  {.branch = id, .before = log});
          return;
        case 8:
          started(rig_.engine.logits(id), {.branch = id, .before = log});
          return;
        default:
          generate(id, log);
      }
    } catch (const BranchBusy&) {
      CHECK(!running_.empty());
    } catch (const TooManyBranches&) {
      CHECK_EQ(rig_.engine.branches().size(), std::size_t{8});
    } catch (const EmptyBranch&) {
      CHECK(log.empty());
    } catch (const ContextFull&) {
      CHECK(rig_.cells->used() > 80);
    }
    CHECK(!rig_.engine.branches().all().contains(id) || rig_.log(id) == log);  // a refused verb changed nothing
  }

  // Cells are held for a while, by a save, an offload or a load.
  void hold(BranchId id) {
    PinnedCells& held = rig_.engine.pinned();
    try {
      const BranchId ids[] = {id, any_branch()};
      switch (pick(3)) {
        case 0:
          holds_.push_back(held.take(ids).first.id);
          break;
        case 1:
          holds_.push_back(held.take_unshared(id).id);
          break;
        default:
          holds_.push_back(held.reserve(static_cast<Pos>(pick(10))).id);
      }
    } catch (const TooManyBranches&) {
      CHECK_EQ(held.size(), static_cast<std::size_t>(rig_.options.max_sequences - 8));
    }
    ++outcomes[holds_.empty() ? "no hold" : "hold"];
    if (holds_.empty() || pick(2) == 0) return;
    std::swap(holds_[pick(holds_.size())], holds_.back());
    held.unpin(holds_.back());
    holds_.pop_back();
  }

  void create() {
    const Tokens prompt = prompt_tokens(1 + static_cast<int>(pick(20)), pick(3));  // often a prefix of another's
    const auto [id, reused] = rig_.engine.create(prompt);
    CHECK(rig_.log(id) == Tokens(prompt.begin(), prompt.begin() + reused));
  }

  void generate(BranchId id, const Tokens& log) {
    GenerateOptions options{.max_tokens = 1 + static_cast<int>(pick(12)), .seed = pick(3)};
    if (pick(2)) options.sampling = {.temperature = 0.8f, .top_k = 12, .top_p = 0.9f, .repetition_penalty = 1.1f};
    const std::uint64_t stream = rig_.engine.branch(id).rng_stream;
    started(rig_.engine.generate(id, options), {.branch = id, .before = log, .options = options, .stream = stream});
  }

  void started(JobId job, Running running) { running_.emplace(job, std::move(running)); }

  void cancel_one() {
    rig_.engine.cancel(std::next(running_.begin(), static_cast<std::ptrdiff_t>(pick(running_.size())))->first);
  }

  void check_finished() {
    for (auto it = running_.begin(); it != running_.end();) {
      const auto found = rig_.finished.find(it->first);
      if (found == rig_.finished.end()) {
        ++it;
        continue;
      }
      check(it->second, found->second);
      it = running_.erase(it);
    }
  }

  void check(const Running& r, const Finished& f) {
    const std::string kind = f.kind;
    ++outcomes[kind + " " + (f.error ? name_of(f.error->kind) : f.finish_reason ? f.finish_reason : "done")];
    if (kind == "generate") {
      Tokens expected = rig_.expected(r.before, r.options.max_tokens, r.options.sampling, r.options.seed, r.stream);
      const std::string reason = f.finish_reason ? f.finish_reason : "";
      CHECK(f.tokens.size() == expected.size() || f.error || reason == "cancelled" || reason == "context_full");
      expected.resize(std::min(expected.size(), f.tokens.size()));
      CHECK(f.tokens == expected);
    }
    if (kind == "logits" && !f.logits.empty()) CHECK(f.logits == rig_.row(r.before));
    const auto& all = rig_.engine.branches().all();
    if (!all.contains(r.branch) || rig_.engine.branch(r.branch).job) return;
    if (touched_since(f.job)) return;
    const bool extended = kind == "extend" && !f.error && !f.finish_reason;
    CHECK(rig_.log(r.branch) == joined(r.before, kind == "generate" ? f.tokens : extended ? r.added : Tokens{}));
  }

  // A job that was cancelled between steps is reported by the next: verbs may have come between.
  bool touched_since(JobId job) const {
    const Finished& f = rig_.finished.at(job);
    return f.finish_reason && std::string(f.finish_reason) == "cancelled";
  }

  std::mt19937 rng_;
  Rig rig_;
  Copies copies_{rig_.engine};
  std::map<JobId, Running> running_;
  std::vector<PinId> holds_;
};

}  // namespace

int main() {
  for (unsigned seed = 0; seed < 120; ++seed) Session(seed).run(150);
  for (const char* outcome :
       {"extend done", "extend ContextFull", "extend StepFailed", "extend cancelled", "generate eos", "generate length",
        "generate context_full", "generate StepFailed", "generate cancelled", "logits done", "logits StepFailed",
        "select done", "select StepFailed", "select cancelled", "retried", "reused", "recalled", "hold", "no hold"}) {
    std::printf("%s: %d\n", outcome, Session::outcomes[outcome]);
    CHECK(Session::outcomes[outcome] > 0);
  }
}
