// The step loop: branches, jobs, reports.
#include "engine/engine.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/reports.h"
#include "bindings/stored.h"
#include "bindings/tokens.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace agentkv {
namespace {

Vocabulary vocabulary_of(const ModelRunner& runner, nb::sequence token_bytes, nb::iterable eos_ids,
                         nb::iterable special_ids) {
  std::vector<nb::object> held;
  std::vector<std::string_view> views;
  for (const nb::handle item : token_bytes) {
    held.push_back(nb::borrow(item));
    const auto bytes = nb::cast<nb::bytes>(item);
    views.emplace_back(bytes.c_str(), bytes.size());
  }
  return Vocabulary(runner.info().vocab_size, views, tokens_of(eos_ids), tokens_of(special_ids));
}

// A Python runner may lead back to the engine: let Python's collector see the cycle. The runner breaks it.
int traverse_engine(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  Engine& engine = *nb::inst_ptr<Engine>(self);
  const nb::handle runner = nb::find(engine.runner());
  Py_VISIT(runner.ptr());
  return 0;
}

PyType_Slot engine_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_engine)}, {0, nullptr}};

template <StepReport (Engine::*kRun)()>
Report run(Engine& engine) {
  StepReport report;
  {
    nb::gil_scoped_release release;
    report = (engine.*kRun)();
  }
  return to_report(std::move(report));
}

void bind_verbs(nb::class_<Engine>& engine) {
  engine
      .def(
          "create",
          [](Engine& self, nb::object tokens, AdapterId adapter) {
            return tokens.is_none() ? self.create({}, adapter)
                                    : self.create(tokens_of(tokens, self.vocabulary().size()), adapter);
          },
          "tokens"_a = nb::none(), "adapter"_a = kNoAdapter,
          nb::sig("def create(self, tokens: collections.abc.Iterable[int] | None = None, adapter: int = 0) -> "
                  "tuple[int, int]"),
          "A new branch, whose tokens have this adapter, and how many tokens it reused. Given the tokens that are "
          "going to be its prompt, it shares the "
          "longest prefix of them that is in the cache, of a live branch or retained, without the last token; extend "
          "it by "
          "the rest. "
          "Raises TooManyBranches, InvalidToken, InvalidRange.")
      .def(
          "create_prompt",
          [](Engine& self, nb::object tokens, std::optional<PinId> pin, Pos parts_at, std::uint64_t rng_stream,
             AdapterId adapter) {
            return self.create_prompt(tokens_of(tokens, self.vocabulary().size()), pin, parts_at, rng_stream, adapter);
          },
          "tokens"_a, "pin"_a, "parts_at"_a, "rng_stream"_a, "adapter"_a = kNoAdapter,
          nb::sig("def create_prompt(self, tokens: collections.abc.Iterable[int], pin: int | None, parts_at: int, "
                  "rng_stream: int, adapter: int = 0) -> tuple[int, int]"),
          "As create, for tokens that the rows of a pin, if any, are the beginning of: those that are not in the cache "
          "are taken from it. What rows from position `parts_at` on look at stays in layers with windows or states, "
          "while the prompt is computed. Its random numbers are of a stream by take_stream(). Raises TooManyBranches, "
          "InvalidToken, InvalidRange.")
      .def("take_stream", &Engine::take_stream, "The stream of random numbers that create would give a branch now.")
      .def(
          "n_reusable",
          [](Engine& self, nb::object tokens, AdapterId adapter) {
            return self.n_reusable(tokens_of(tokens, self.vocabulary().size()), adapter);
          },
          "tokens"_a, "adapter"_a = kNoAdapter,
          nb::sig("def n_reusable(self, tokens: collections.abc.Iterable[int], adapter: int = 0) -> int"),
          "How many of these tokens create would reuse. Raises TooManyBranches, InvalidToken, InvalidRange.")
      .def("set_adapter", &Engine::set_adapter, "branch"_a, "adapter"_a,
           "From the branch's present end on its tokens have another adapter; 0 for none. Raises BranchClosed, "
           "BranchBusy, InvalidRange.")
      .def(
          "adapter", [](Engine& self, BranchId id) { return self.branch(id).adapters.last(); }, "branch"_a,
          "The adapter of its next token; 0 for none. Raises BranchClosed.")
      .def("fork", nb::overload_cast<BranchId>(&Engine::fork), "branch"_a,
           "A branch with the same history. Shares cells and copies no bytes; takes a branch with a running job as it "
           "is now. Raises BranchClosed, TooManyBranches.")
      .def("fork", nb::overload_cast<BranchId, std::size_t>(&Engine::fork), "branch"_a, "n"_a,
           "As many of them, or none. Raises BranchClosed, TooManyBranches.")
      .def(
          "copy", &Engine::copy, "branch"_a,
          "A branch in the same state, random stream included, which is no fork: to go back to, or to try something on "
          "and adopt it. Raises BranchClosed, BranchBusy, TooManyBranches.")
      .def("rollback", &Engine::rollback, "branch"_a, "length"_a, "epoch"_a = nb::none(), "keep_forgotten"_a = false,
           "Forgets the tokens from `length` on. Given the epoch that the token before `length` had, it raises "
           "InvalidRollback where the branch has that token no more. What was forgotten since is taken back, unless it "
           "made room or keep_forgotten says that it stays so. Raises BranchClosed, BranchBusy, InvalidRollback.")
      .def(
          "tip", &Engine::tip, "branch"_a,
          "Which history a branch has: its length, and the epoch of its last token, 0 where there is none. Tokens that "
          "a branch wrote one after another share an epoch, which no others have. Raises BranchClosed, BranchBusy.")
      .def("adopt", &Engine::adopt, "dst"_a, "src"_a,
           "dst takes over src's history and random stream; src stays as it is. Raises BranchClosed, BranchBusy.")
      .def("forget", &Engine::forget, "branch"_a, "first"_a, "last"_a, "for_room"_a = false,
           "Positions [first, last) keep their tokens and lose their cells: from the last token on nothing sees them. "
           "With for_room no rollback takes it back. Returns how many cells are free for it. Raises BranchClosed, "
           "BranchBusy, InvalidRange.")
      .def(
          "replace",
          [](Engine& self, BranchId id, std::int64_t first, std::int64_t last, nb::object tokens) {
            self.replace(id, first, last, tokens_of(tokens, self.vocabulary().size()));
          },
          "branch"_a, "first"_a, "last"_a, "tokens"_a,
          nb::sig("def replace(self, branch: int, first: int, last: int, tokens: collections.abc.Iterable[int]) -> "
                  "None"),
          "Tokens [first, last) give way to others; all that follows them is fed again by the next job. Raises "
          "BranchClosed, BranchBusy, InvalidRange, InvalidToken, PositionsExhausted.")
      .def(
          "forgotten",
          [](Engine& self, BranchId id) {
            std::vector<std::pair<Pos, Pos>> ranges;
            for (const Forgotten& gone : self.forgotten(id)) ranges.emplace_back(gone.first, gone.last);
            return ranges;
          },
          "branch"_a, "The ranges [first, last) of positions that were forgotten. Raises BranchClosed.")
      .def("drop_cells_from", &Engine::drop_cells_from, "branch"_a, "length"_a,
           "The cache keeps the first `length` tokens of the branch, at most; its next job feeds the others again. "
           "Raises "
           "BranchClosed, BranchBusy, InvalidRange.")
      .def("resume", &Engine::resume, "job"_a, "made_room"_a,
           "Ends the wait of a generation that StepReport.out_of_room named, on whose branch forget, replace, "
           "drop_cells_from and "
           "copy worked "
           "meanwhile; without room it ends. Nothing happens to other jobs.")
      .def(
          "compact", &Engine::compact, "retain"_a = nb::none(),
          "Moves cells to the front of the cache: returns the number of the first one that is free and below no other. "
          "With `retain`, what was retained beyond so many cells is let go first. Raises InvalidRange.")
      .def(
          "cells_of", [](const Engine& self, const std::vector<BranchId>& branches) { return self.cells_of(branches); },
          "branches"_a,
          "How many cells these branches have in the cache, those that several have once. Raises BranchClosed.")
      .def("check_owners", &Engine::check_owners,
           "For tests: raises RuntimeError unless every sequence and every cell has the owners that the tables say.")
      .def("close", &Engine::close, "branch"_a, "Cancels the branch's job and frees its cells. Idempotent.")
      .def(
          "tokens", [](Engine& self, BranchId id) { return copied_array<Token>(self.branch(id).log); }, "branch"_a,
          "The branch's tokens, a copy: int32 [length]. Raises BranchClosed.")
      .def("take_changes", &Engine::take_changes,
           "How the branches' tokens differ from what the last call said, each branch once, as of the end of its last "
           "verb or job.")
      .def(
          "length", [](Engine& self, BranchId id) { return self.branch(id).length(); }, "branch"_a,
          "Raises BranchClosed.")
      .def(
          "n_cached", [](Engine& self, BranchId id) { return self.branch(id).n_cached; }, "branch"_a,
          "How many of its tokens the cache holds: all, or all but the last. Raises BranchClosed.")
      .def("replaceable", &Engine::replaceable, "branch"_a,
           "Tokens before this position can be replaced: not the last one, and none of an output that is being "
           "generated. Raises BranchClosed.")
      .def("goes_on", &Engine::goes_on, "branch"_a, "constraint"_a,
           "Would a generation under this constraint go on with the output that the branch was asked for last? Raises "
           "BranchClosed.")
      .def("n_to_refill", &Engine::n_to_refill, "branch"_a,
           "How many of its tokens the next job feeds at once, before all else. Raises BranchClosed.")
      .def("n_exclusive_cells", &Engine::n_exclusive_cells, "branch"_a, "first"_a,
           "How many cells are free for it once the branch has no token any more from position `first` on. Raises "
           "BranchClosed, InvalidRange.")
      .def(
          "rng_stream", [](Engine& self, BranchId id) { return self.branch(id).rng_stream; }, "branch"_a,
          "The key of the branch's random numbers. Raises BranchClosed.")
      .def(
          "live",
          [](Engine& self) {
            std::vector<BranchId> ids;
            for (const auto& [id, branch] : self.branches().all()) ids.push_back(id);
            return ids;
          },
          "The branches, oldest first.");
}

void bind_jobs(nb::class_<Engine>& engine) {
  engine
      .def(
          "extend",
          [](Engine& self, BranchId id, nb::object tokens) {
            return self.extend(id, tokens_of(tokens, self.vocabulary().size()));
          },
          "branch"_a, "tokens"_a,
          nb::sig("def extend(self, branch: int, tokens: collections.abc.Iterable[int]) -> int"),
          "Feeds tokens, in chunks. All or nothing: when it fails or is cancelled the branch has its old length. "
          "Raises BranchClosed, BranchBusy, InvalidToken, PositionsExhausted, ContextFull.")
      .def("generate", &Engine::generate, "branch"_a, "options"_a,
           "Samples tokens until eos, a stop string, max_tokens or a full cache. All of them enter the branch's log. "
           "Draws depend on (seed, stream of the branch, position) alone; temperature 0 takes the most likely token. "
           "Raises BranchClosed, BranchBusy, EmptyBranch, InvalidSampling, PositionsExhausted, InvalidEngine.")
      .def("attach", &Engine::attach, "drafter"_a,
           "From now on the drafter hears of every branch; a generation that names it attaches it too.")
      .def("acceptance", &Engine::acceptance, "drafter"_a,
           "How often drafts of an attached drafter were accepted, older ones counting less. Raises InvalidEngine.")
      .def("set_policy", &Engine::set_policy, "policy"_a,
           "The constants of the drafting policy, for benchmarks to change before the first draft.")
      .def("set_digests", &Engine::set_digests, "on"_a,
           "Do generations digest the rows of logits that they draw from, from now on? See `Finished.digests`.")
      .def("logits", &Engine::logits, "branch"_a,
           "The next-token logits. Raises BranchClosed, BranchBusy, EmptyBranch.")
      .def(
          "select",
          [](Engine& self, BranchId id, nb::sequence choices) {
            std::vector<std::vector<Token>> lists;
            for (const nb::handle choice : choices) lists.push_back(tokens_of(choice, self.vocabulary().size()));
            return self.select(id, std::move(lists));
          },
          "branch"_a, "choices"_a,
          nb::sig("def select(self, branch: int, "
                  "choices: collections.abc.Sequence[collections.abc.Iterable[int]]) -> int"),
          "Scores each choice as a continuation, in one forward where they fit. The branch keeps its tokens. Raises "
          "BranchClosed, BranchBusy, EmptyBranch, InvalidToken, InvalidChoices, PositionsExhausted.")
      .def("cancel", &Engine::cancel, "job"_a,
           "Ends a job at once, with finish_reason \"cancelled\" in the next report. Nothing happens to one that has "
           "ended.")
      .def("undo", &Engine::undo, "job"_a, "kept"_a = 0,
           "Ends an extend or a generation that emits, and undoes it as far as it made more than its first `kept` "
           "tokens: the branch is as if it had made no more. False where the branch is closed or went on since; then "
           "what it made stays.")
      .def("ack", &Engine::ack, "job"_a, "tokens"_a,
           "The reader of a generation with emit_ahead has taken so many more of its tokens.");
}

}  // namespace
}  // namespace agentkv

void bind_engine(nb::module_& m) {
  using namespace agentkv;
  nb::class_<Engine> engine(
      m, "Engine", nb::type_slots(engine_slots),
      "The step loop over one program and one cache. Used by one thread. A verb checks everything "
      "before it changes anything; all but fork, close and the questions raise BranchBusy while a "
      "job runs on the branch.");
  engine.def(
      "__init__",
      [](Engine* self, std::shared_ptr<ModelRunner> runner, std::shared_ptr<TreeSeqCache> cache,
         nb::sequence token_bytes, nb::iterable eos_ids, nb::iterable special_ids, std::int32_t max_batch_tokens,
         std::int32_t max_branches, std::int32_t max_positions, Cell retain, Pos window, Pos sinks, Pos reach,
         Pos quantize_after, std::vector<Pos> layer_windows, bool states) {
        Vocabulary vocabulary = vocabulary_of(*runner, token_bytes, eos_ids, special_ids);
        const EngineConfig config{.max_batch_tokens = max_batch_tokens,
                                  .max_branches = max_branches,
                                  .retain = retain,
                                  .max_positions = max_positions,
                                  .window = {window, sinks, reach, std::move(layer_windows), states},
                                  .quantize_after = quantize_after};
        new (self) Engine(std::move(runner), std::move(cache), std::move(vocabulary), config);
      },
      "runner"_a, "cache"_a, nb::kw_only(), "token_bytes"_a, "eos_ids"_a, "special_ids"_a, "max_batch_tokens"_a = 512,
      "max_branches"_a = kDefaultMaxSequences, "max_positions"_a = 0, "retain"_a = 0, "window"_a = 0, "sinks"_a = 0,
      "reach"_a = 0, "quantize_after"_a = -1, "layer_windows"_a = std::vector<Pos>(), "states"_a = false,
      nb::sig("def __init__(self, runner: ModelRunner, cache: TreeSeqCache, *, token_bytes: "
              "collections.abc.Sequence[bytes], "
              "eos_ids: collections.abc.Iterable[int], special_ids: collections.abc.Iterable[int], "
              "max_batch_tokens: int = 512, max_branches: int = 256, max_positions: int = 0, retain: int = 0, window: "
              "int = 0, "
              "sinks: int = 0, reach: int = 0, quantize_after: int = -1, layer_windows: "
              "collections.abc.Sequence[int] = [], states: bool = False) -> None"),
      "token_bytes: the bytes of each token id. max_batch_tokens: rows of a step that prefill may fill up. "
      "max_branches: live branches; the cache must have as many sequences, and those it has more let select score more "
      "choices at once. max_positions: tokens that a branch may hold at most; 0 for any number. retain: cells that "
      "closed "
      "branches leave to those that begin alike, at most and while nobody else needs them. window, sinks: in no layer "
      "does a row look further back than `window` positions, its own among them, the first `sinks` apart; 0 for no "
      "window. reach: so many positions before it, over all layers, make the keys and values of a position. "
      "quantize_after: cells of all but so many newest positions are held in fewer bits, where the cache can; -1: none "
      "are. layer_windows: of the layers that have one, each size once and the shortest first, where other layers look "
      "at everything: what is behind them leaves these layers. states: some layers "
      "keep states, which hold all that came before: nothing can be forgotten. Raises InvalidEngine.");
  bind_verbs(engine);
  bind_jobs(engine);
  bind_stored_verbs(engine);
  engine
      .def("settle", &run<&Engine::settle>,
           "What ends without a forward: cancelled jobs, and jobs whose logits are known. A step does the same first; "
           "called on its own, those who wait for such jobs can join the step.")
      .def("step", &run<&Engine::step>,
           "At most one merged forward (more only where the rows exceed what the program takes) over the next row of "
           "every generation and as many prefill rows as fit. Releases the GIL. Returns at once, idle, when nothing is "
           "runnable.")
      .def("stats", &Engine::stats, "Counters since the engine was made, and what the cache holds now.");
}
