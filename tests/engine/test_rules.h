// Constraints that are functions of what was said, their driver, which checks how it is called, and the loop that says
// what comes under them.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "engine/rig.h"

namespace agentkv::testing {

// What may come after `said`; null: it is complete.
using Next = std::function<std::optional<Tokens>(const Tokens& said)>;

struct TestRule final : Constraint {
  TestRule(std::shared_ptr<ConstraintDriver> driver, Next next)
      : Constraint(std::move(driver), "test"), next(std::move(next)) {}
  const Next next;
};

class TestRules final : public ConstraintDriver {
 public:
  explicit TestRules(std::int32_t vocab_size, bool forces = true) : vocab_size_(vocab_size), forces_(forces) {}

  void take_turns(std::span<ConstraintTurn> turns, std::span<const JobId> ended) override {
    CHECK(!turns.empty());
    ++calls;
    most_turns = std::max(most_turns, turns.size());
    stepper = std::this_thread::get_id();
    for (const JobId job : ended) CHECK_EQ(states_.erase(job), 1u);
    for (ConstraintTurn& turn : turns) {
      CHECK_EQ(turn.first, !states_.contains(turn.job));
      State& state = states_[turn.job];
      if (turn.first) state.rule = static_cast<const TestRule*>(turn.constraint);
      state.said.insert(state.said.end(), turn.said.begin(), turn.said.end());
      try {
        answer(turn, state);
      } catch (const std::exception& error) {
        turn.error = error.what();
        states_.erase(turn.job);
      }
    }
  }

  void grow_drafts(std::span<DraftTurn> turns) override {
    CHECK(!turns.empty());
    CHECK(std::this_thread::get_id() == stepper);
    if (growth_fault) growth_fault();
    for (DraftTurn& turn : turns) grow(turn, states_.at(turn.job));
  }

  void fill_masks(std::span<MaskRequest> requests) override {
    CHECK(std::this_thread::get_id() != stepper);
    ++fillings;
    if (fault) fault();
    for (MaskRequest& request : requests) {
      const State& state = states_.at(request.job);
      fill(state.rule->next(state.said), request.masks, 0);
      for (std::size_t node = 0; request.draft && node < request.draft->size(); ++node) {
        const auto next = after(state, *request.draft, static_cast<std::int32_t>(node));
        if (next) fill(*next, request.masks, 1 + node);
      }
    }
  }

  std::function<void()> fault;         // may throw where masks are filled
  std::function<void()> growth_fault;  // or where drafts grow
  int added = 0;                       // nodes, to drafts
  int calls = 0;
  int fillings = 0;
  std::size_t most_turns = 0;
  std::thread::id stepper;

 private:
  struct State {
    const TestRule* rule = nullptr;
    Tokens said = {};
  };

  void answer(ConstraintTurn& turn, const State& state) {
    const auto next = state.rule->next(state.said);
    turn.complete = !next;
    if (!next) return;
    Tokens said = state.said;
    for (auto then = next; forces_ && then && then->size() == 1; then = state.rule->next(said)) {
      if (static_cast<std::int32_t>(turn.forced.size()) >= turn.max_forced) break;
      turn.forced.push_back(then->front());
      said.push_back(then->front());
    }
  }

  void grow(DraftTurn& turn, const State& state) {
    for (std::size_t node = 0; node < turn.draft->size(); ++node) {
      const auto place = static_cast<std::int32_t>(node);
      const auto before = after(state, *turn.draft, turn.draft->parents[node]);
      if (!before || !*before || !has(**before, turn.draft->tokens[node])) continue;
      turn.allowed.push_back(place);
      const auto then = after(state, *turn.draft, place);
      if (forces_ && *then && (*then)->size() == 1 && turn.draft->child(place, (*then)->front()) < 0) {
        add_forced(turn, state, place);
      }
    }
  }

  void add_forced(DraftTurn& turn, const State& state, std::int32_t parent) {
    Draft grown = *turn.draft;  // with what was added before it
    grown.tokens.insert(grown.tokens.end(), turn.added.begin(), turn.added.end());
    grown.parents.insert(grown.parents.end(), turn.added_parents.begin(), turn.added_parents.end());
    while (static_cast<std::int32_t>(turn.added.size()) < turn.max_added) {
      const auto next = after(state, grown, parent);
      if (!*next || (*next)->size() != 1) return;
      grown.tokens.push_back((*next)->front());
      grown.parents.push_back(parent);
      turn.added.push_back((*next)->front());
      turn.added_parents.push_back(parent);
      parent = static_cast<std::int32_t>(grown.size()) - 1;
      ++added;
    }
  }

  static bool has(const Tokens& tokens, Token token) {
    return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
  }

  // What may come after a node; none where the node itself may not come.
  static std::optional<std::optional<Tokens>> after(const State& state, const Draft& draft, std::int32_t node) {
    Tokens path;
    for (; node >= 0; node = draft.parents[static_cast<std::size_t>(node)]) {
      path.insert(path.begin(), draft.tokens[static_cast<std::size_t>(node)]);
    }
    Tokens said = state.said;
    for (const Token token : path) {
      const auto next = state.rule->next(said);
      if (!next || !has(*next, token)) return std::nullopt;
      said.push_back(token);
    }
    return state.rule->next(said);
  }

  void fill(const std::optional<Tokens>& next, std::span<std::uint32_t> masks, std::size_t row) const {
    const auto own = masks.subspan(row * mask_words(vocab_size_), mask_words(vocab_size_));
    for (const std::uint32_t word : own) CHECK_EQ(word, 0u);
    for (const Token token : next.value_or(Tokens{vocab_size_}))
      own[static_cast<std::size_t>(token) / 32] |= 1u << token % 32;
  }

  const std::int32_t vocab_size_;
  const bool forces_;
  std::map<JobId, State> states_;
};

struct Said {
  Tokens tokens;
  std::string reason;
};

// What a model without any cache says after `history` under a rule, of which `said` was said before.
inline Said said_under(const Rig& rig, const Next& next, Tokens history, Tokens said, int max_tokens,
                       const Sampling& sampling = {}, std::uint64_t seed = 0, std::uint64_t stream = 0) {
  Sampler sampler;
  Said out;
  while (true) {
    const auto allowed = next(said);
    if (!allowed) return {out.tokens, "stop"};
    if (static_cast<int>(out.tokens.size()) == max_tokens) return {out.tokens, "length"};
    std::vector<std::uint32_t> mask(mask_words(rig.options.info.vocab_size));
    for (const Token token : *allowed) mask[static_cast<std::size_t>(token) / 32] |= 1u << token % 32;
    const RandomKey key{seed, stream, static_cast<std::uint32_t>(history.size())};
    const Token token = sampler.sample(rig.row(history), sampling, {history, out.tokens}, key, mask).token;
    for (Tokens* log : {&out.tokens, &history, &said}) log->push_back(token);
    if (!rig.options.eos.empty() && token == rig.options.eos.front()) return {out.tokens, "eos"};
  }
}

}  // namespace agentkv::testing
