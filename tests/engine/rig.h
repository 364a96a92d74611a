// An engine over the reference program, and what its tests ask of it again and again.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/errors.h"
#include "engine/engine.h"
#include "engine/reference_runner.h"

namespace agentkv::testing {

struct RigOptions {
  Cell capacity = 1024;
  SeqId max_sequences = 64;
  RunnerInfo info{.vocab_size = 48, .max_tokens = 64, .max_logits = 16};
  EngineConfig config{.max_batch_tokens = 32, .max_branches = 32};
  std::vector<std::string> token_bytes = {};  // by default token t is one letter
  Tokens eos = {0};
  Tokens special = {0, 1};
};

class Rig {
 public:
  explicit Rig(RigOptions options = {})
      : options(fill(std::move(options))),
        cells(std::make_shared<Cells>(this->options.capacity, this->options.max_sequences)),
        program(std::make_shared<ReferenceRunner>(cells, this->options.info)),
        engine(program, cells, vocabulary(this->options), this->options.config) {}

  // One step, its report kept and the state checked.
  StepReport step() {
    StepReport report = engine.step();
    for (Finished& f : report.finished) {
      const JobId job = f.job;
      CHECK(!finished.contains(job));
      finished[job] = std::move(f);
    }
    for (Emitted& e : report.emitted) emitted.push_back(std::move(e));
    check_state();
    return report;
  }

  void drain() {
    while (!step().idle) continue;
  }

  Finished run(JobId job) {
    while (!finished.contains(job)) CHECK(!step().idle);
    return finished.at(job);
  }

  BranchId prompt(const Tokens& tokens) {
    const auto [branch, reused] = engine.create(tokens);
    const Finished f = run(engine.extend(branch, std::span(tokens).subspan(static_cast<std::size_t>(reused))));
    CHECK(!f.error);
    return branch;
  }

  Finished generate(BranchId branch, int max_tokens, std::shared_ptr<Drafter> drafter = nullptr) {
    return run(engine.generate(branch, {.max_tokens = max_tokens, .drafter = std::move(drafter)}));
  }

  Tokens log(BranchId branch) { return engine.branch(branch).log; }

  // What the runner computes a branch's history from: its tokens, or their keys where they have adapters.
  Tokens keys(const Branch& branch) const {
    std::vector<Token> room;
    const auto keys = CacheKeys(options.info.vocab_size).of(branch.log, branch.adapters, room);
    return {keys.begin(), keys.end()};
  }

  std::vector<float> row(const Tokens& history) const {
    std::vector<float> row(static_cast<std::size_t>(options.info.vocab_size));
    program->model(history, row);
    return row;
  }

  // What a model without any cache samples after `history`.
  Tokens expected(Tokens history, int max_tokens, const Sampling& sampling = {}, std::uint64_t seed = 0,
                  std::uint64_t stream = 0) const {
    Sampler sampler;
    Tokens out;
    while (static_cast<int>(out.size()) < max_tokens) {
      const RandomKey key{seed, stream, static_cast<std::uint32_t>(history.size())};
      const Token token = sampler.sample(row(history), sampling, {history, out}, key).token;
      out.push_back(token);
      history.push_back(token);
      if (!options.eos.empty() && token == options.eos.front()) break;
    }
    return out;
  }

  // The cache holds exactly what the branches say, and nobody else holds a cell, unless there are holds.
  void check_state() {
    SeqId live = 0;
    std::set<Cell> owned;
    for (const auto& [id, branch] : engine.branches().all()) {
      CHECK(branch->n_cached <= branch->length());
      if (!branch->job && !branch->offloaded()) CHECK(branch->length() - branch->n_cached <= 1);
      if (branch->next_logits) {
        CHECK_EQ(branch->n_cached, branch->length());
        CHECK(*branch->next_logits == row(keys(*branch)));
      }
      CHECK_EQ(cells->seq_len(branch->seq), branch->n_cached);
      CHECK(program->cached(branch->seq) == first(keys(*branch), static_cast<std::size_t>(branch->n_cached)));
      live += branch->n_cached > 0;
      for (const Run& run : cells->seq_runs(branch->seq)) {
        for (Cell c = run.cell; c < run.cell + run.length; ++c) owned.insert(c);
      }
    }
    engine.check_owners();
    if (!engine.pinned().empty()) return;
    CHECK_EQ(cells->live_sequences(), live);
    CHECK_EQ(cells->used(), static_cast<Cell>(owned.size()));
  }

  const RigOptions options;
  const std::shared_ptr<Cells> cells;
  const std::shared_ptr<ReferenceRunner> program;
  Engine engine;
  std::map<JobId, Finished> finished;
  std::vector<Emitted> emitted;

  static Tokens first(Tokens tokens, std::size_t count) {
    tokens.resize(count);
    return tokens;
  }

 private:
  static RigOptions fill(RigOptions options) {
    for (Token t = 0; options.token_bytes.size() < static_cast<std::size_t>(options.info.vocab_size); ++t) {
      options.token_bytes.push_back(std::string(1, static_cast<char>('A' + t % 50)));
    }
    return options;
  }

  static Vocabulary vocabulary(const RigOptions& options) {
    const std::vector<std::string_view> bytes(options.token_bytes.begin(), options.token_bytes.end());
    return Vocabulary(options.info.vocab_size, bytes, options.eos, options.special);
  }
};

// What the changes add up to, for someone who applies them to copies.
class Copies {
 public:
  explicit Copies(Engine& engine) : engine_(engine) {}

  // Of a live branch, as of its last verb or job that ended.
  const Tokens& operator[](BranchId id) {
    for (const LogChange& change : engine_.take_changes()) {
      Tokens& copy = copies_[change.branch];
      CHECK(change.kept <= static_cast<Pos>(copy.size()));
      copy.resize(static_cast<std::size_t>(change.kept));
      copy.insert(copy.end(), change.appended.begin(), change.appended.end());
    }
    return copies_[id];
  }

 private:
  Engine& engine_;
  std::map<BranchId, Tokens> copies_;
};

inline Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Tokens 2 ... vocab - 1, so that none is special.
inline Tokens prompt_tokens(int n, std::uint64_t seed = 1, Token vocab = 48) {
  Tokens tokens;
  for (int i = 0; i < n; ++i) {
    tokens.push_back(static_cast<Token>(2 + mixed(seed * 1000 + static_cast<std::uint64_t>(i)) %
                                                static_cast<std::uint64_t>(vocab - 2)));
  }
  return tokens;
}

}  // namespace agentkv::testing
