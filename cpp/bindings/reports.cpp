#include "bindings/reports.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>

#include "bindings/errors.h"
#include "bindings/fields.h"
#include "engine/stats.h"

namespace nb = nanobind;

namespace agentkv {
namespace {

nb::bytes bytes_of(const std::string& text) { return nb::bytes(text.data(), text.size()); }

std::vector<std::pair<Token, float>> pairs_of(const std::vector<TokenLogprob>& likely) {
  std::vector<std::pair<Token, float>> pairs;
  for (const auto& [token, logprob] : likely) pairs.emplace_back(token, logprob);
  return pairs;
}

}  // namespace

Report to_report(StepReport step) {
  Report report{std::move(step), {}, {}};
  for (Emitted& emitted : report.step.emitted) report.emitted.append(nb::cast(std::move(emitted)));
  for (Finished& finished : report.step.finished) report.finished.append(nb::cast(std::move(finished)));
  return report;
}

}  // namespace agentkv

void bind_reports(nb::module_& m) {
  using namespace agentkv;
  nb::class_<LogChange>(m, "LogChange", "How a branch's tokens differ from what was last told of them.")
      .def_ro("branch", &LogChange::branch)
      .def_ro("kept", &LogChange::kept, "Tokens at the front that stay.")
      .def_prop_ro(
          "appended",
          [](const LogChange& c) {
            return nb::bytes(reinterpret_cast<const char*>(c.appended.data()), c.appended.size() * sizeof(Token));
          },
          "What follows them now: int32, in the machine's byte order.")
      .def_ro("epoch", &LogChange::epoch, "Of the last token, as `Engine.end` says.")
      .def_ro("adapter", &LogChange::adapter, "Of the next token; 0 for none.");

  nb::class_<Emitted>(m, "Emitted", "One token of a generation that was started with emit=True.")
      .def_ro("job", &Emitted::job)
      .def_ro("token", &Emitted::token)
      .def_ro("logprob", &Emitted::logprob, "Under the model's own distribution, before any sampling filter.")
      .def_prop_ro(
          "text", [](const Emitted& e) { return bytes_of(e.text); },
          "Bytes that may be shown now. Bytes that may begin a stop string are held back; the last token of a "
          "generation that ends by itself releases them.")
      .def_prop_ro(
          "top_logprobs", [](const Emitted& e) { return pairs_of(e.top_logprobs); },
          "(token, logprob) of the likeliest tokens in its place, as many as were asked for, best first.");

  nb::class_<Finished>(m, "Finished", "The end of a job. Its kind says which fields are filled.")
      .def_ro("job", &Finished::job)
      .def_prop_ro(
          "kind", [](const Finished& f) { return f.kind; },
          nb::sig("def kind(self) -> typing.Literal['extend', 'generate', 'logits', 'select']"))
      .def_prop_ro(
          "error",
          [](const Finished& f) -> nb::object {
            return f.error ? exception_of(f.error->kind, f.error->message) : nb::none();
          },
          nb::sig("def error(self) -> Error | None"),
          "ContextFull or StepFailed, not raised, when the job failed. The branch is as it was before the failed step; "
          "an extend is undone as a whole.")
      .def_prop_ro(
          "finish_reason", [](const Finished& f) { return f.finish_reason; },
          nb::sig(
              "def finish_reason(self) -> typing.Literal['eos', 'stop', 'length', 'context_full', 'cancelled'] | None"),
          "Why a generation ended; \"cancelled\" for a cancelled job of any kind; else None.")
      .def_ro("seconds", &Finished::seconds, "That the job took.")
      .def_ro("first_token_seconds", &Finished::first_token_seconds,
              "generate: of these, until the first token was there; 0 where none came.")
      .def_ro("tokens", &Finished::tokens, "generate: the tokens added to the branch, also when it failed.")
      .def_ro("logprobs", &Finished::logprobs, "generate: one per token, under the model's own distribution.")
      .def_prop_ro(
          "top_logprobs",
          [](const Finished& f) {
            std::vector<std::vector<std::pair<Token, float>>> all;
            for (const auto& likely : f.top_logprobs) all.push_back(pairs_of(likely));
            return all;
          },
          "generate: per token, (token, logprob) of the likeliest in its place, best first; empty if not asked for.")
      .def_prop_ro(
          "text", [](const Finished& f) { return bytes_of(f.text); },
          "generate: the tokens' bytes without special tokens, cut before the stop string.")
      .def_ro("prompt_tokens", &Finished::prompt_tokens, "generate: the branch's length when it began.")
      .def_ro("output_began", &Finished::output_began,
              "generate, under a constraint: where in the branch its output begins; -1 without.")
      .def_prop_ro(
          "digests",
          [](const Finished& f) {
            return nb::bytes(reinterpret_cast<const char*>(f.digests.data()), f.digests.size() * sizeof(std::uint64_t));
          },
          "generate: per token, a hash of the row of logits that it was drawn from; uint64, in the machine's byte "
          "order. Empty unless `Engine.set_digests` asked for them before.")
      .def_prop_ro(
          "logits",
          [](nb::handle_t<Finished> self) -> nb::object {
            auto& logits = nb::cast<Finished&>(self).logits;
            if (logits.empty()) return nb::none();
            return nb::cast(nb::ndarray<nb::numpy, float, nb::ndim<1>>(logits.data(), {logits.size()}, self));
          },
          nb::sig("def logits(self) -> numpy.typing.NDArray[numpy.float32] | None"), "logits: float32 [vocab_size].")
      .def_ro("scores", &Finished::scores, "select: per choice, the sum of its tokens' log-probabilities.");

  nb::class_<Stats> stats(
      m, "Stats", "A snapshot of what an engine has done and holds; `agentkv.Stats` says what each counter means.");
  bind_attributes(stats, kStatsFields);

  nb::class_<Report>(m, "StepReport", "What one step did.")
      .def_prop_ro(
          "idle", [](const Report& r) { return r.step.idle; },
          "Nothing was runnable and nothing is reported: wait for a new job.")
      .def_prop_ro(
          "rows", [](const Report& r) { return r.step.rows; }, "Tokens fed.")
      .def_prop_ro("decode_rows", [](const Report& r) { return r.step.decode_rows; })
      .def_prop_ro("prefill_rows", [](const Report& r) { return r.step.prefill_rows; })
      .def_prop_ro(
          "branches", [](const Report& r) { return r.step.branches; }, "Branches that had rows in the step.")
      .def_prop_ro(
          "forwards", [](const Report& r) { return r.step.forwards; },
          "1, or more where the rows exceed what the program takes or a failed forward was retried.")
      .def_prop_ro(
          "shares",
          [](const Report& r) {
            static_assert(sizeof(Share) == 24);
            return nb::bytes(reinterpret_cast<const char*>(r.step.shares.data()), r.step.shares.size() * sizeof(Share));
          },
          "What each branch had in it: (int64 branch, int32 kind, rows, drafted, accepted), in the machine's byte "
          "order. "
          "Kind 0 is prefill, 1 decoding, 2 tokens whose cells had been let go. Of `rows`, `drafted` were draft nodes, "
          "of "
          "which `accepted` came true.")
      .def_prop_ro(
          "seconds", [](const Report& r) { return r.step.seconds; }, "That the step took.")
      .def_prop_ro(
          "forward_seconds", [](const Report& r) { return r.step.forward_seconds; }, "Of these, inside the program.")
      .def_prop_ro(
          "draft_seconds", [](const Report& r) { return r.step.draft_seconds; }, "Of these, inside drafters.")
      .def_ro("emitted", &Report::emitted, nb::for_getter(nb::sig("def emitted(self) -> list[Emitted]")))
      .def_ro("finished", &Report::finished, nb::for_getter(nb::sig("def finished(self) -> list[Finished]")),
              "Jobs that ended in this step, or between it and the one before.")
      .def_prop_ro(
          "out_of_room", [](const Report& r) { return r.step.out_of_room; },
          "Generations with wait_for_room that wait from now on, for Engine.resume.");
}
