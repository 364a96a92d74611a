// The drafters that run a program: a draft model, and an EAGLE head.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/make_session.h"
#include "core/errors.h"
#include "executorch/head_session.h"
#include "executorch/session.h"
#include "spec/eagle_drafter.h"
#include "spec/model_drafter.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace agentkv {
namespace {

using Rows = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class Array>
auto span_of(const Array& array) {
  return std::span(array.data(), array.size());
}

nb::object matrix_of(std::vector<float> values, std::size_t width) {
  const std::size_t rows = values.size() / width;
  return nb::cast(array_of<float>(std::move(values), rows, width));
}

nb::object fuse(ExecuTorchHeadSession& head, const Matrix& features) {
  const auto width = static_cast<std::size_t>(head.info().hidden_dim);
  std::vector<float> hidden(features.shape(0) * width);
  {
    nb::gil_scoped_release release;
    head.fuse(span_of(features), hidden);
  }
  return matrix_of(std::move(hidden), width);
}

nb::object forward(ExecuTorchHeadSession& head, const Rows& tokens, const Rows& positions, const Matrix& hidden,
                   const Rows& logits_indices) {
  std::vector<float> logits, hidden_out;
  {
    nb::gil_scoped_release release;
    const HeadRows out = head.forward(span_of(tokens), span_of(positions), span_of(hidden), span_of(logits_indices));
    logits.assign(out.logits.begin(), out.logits.end());
    hidden_out.assign(out.hidden.begin(), out.hidden.end());
  }
  const HeadInfo& info = head.info();
  return nb::make_tuple(matrix_of(std::move(logits), static_cast<std::size_t>(info.vocab_size)),
                        matrix_of(std::move(hidden_out), static_cast<std::size_t>(info.hidden_dim)));
}

nb::dict info(const ExecuTorchHead& head) {
  nb::dict out;
  out["vocab_size"] = head.info().vocab_size;
  out["max_tokens"] = head.info().max_tokens;
  out["max_logits"] = head.info().max_logits;
  out["feature_dim"] = head.info().feature_dim;
  out["hidden_dim"] = head.info().hidden_dim;
  out["n_kv_heads"] = head.architecture().n_kv_heads;
  out["head_dim"] = head.architecture().head_dim;
  return out;
}

void bind_head(nb::module_& m) {
  auto head =
      nb::class_<ExecuTorchHead>(m, "ExecuTorchHead", nb::is_weak_referenceable(),
                                 "A draft head's .pte loaded into this process. Its weights are loaded once, whatever "
                                 "number of sessions run over it; calls of its sessions take turns.")
          .def(nb::init<std::string, std::string>(), "path"_a, "backend_id"_a = "AgentKVCPU",
               nb::call_guard<nb::gil_scoped_release>(),
               "Raises ProgramError for a file that is missing, damaged, foreign, of an unknown schema version, no "
               "draft "
               "head, or made for a backend that is not here.")
          .def_prop_ro("path", &ExecuTorchHead::path)
          .def_prop_ro(
              "info", &info, nb::sig("def info(self) -> dict[str, int]"),
              "vocab_size (of the head), max_tokens, max_logits, feature_dim, hidden_dim, n_kv_heads, head_dim.");
  def_make_session<ExecuTorchHeadSession, ExecuTorchHead>(head);

  nb::class_<ExecuTorchHeadSession>(m, "ExecuTorchHeadSession",
                                    "One cache over a loaded draft head. Belongs to one thread at a time.")
      .def_prop_ro(
          "cache", [](const ExecuTorchHeadSession& s) { return std::shared_ptr<TreeSeqCache>(s.cache()); },
          "The bookkeeping: which sequence holds which cells.")
      .def_prop_ro("head", &ExecuTorchHeadSession::head)
      .def_prop_ro(
          "kv_bytes", [](const ExecuTorchHeadSession& s) { return s.layer().bytes(); }, "Bytes that K and V take now.")
      .def("fuse", &fuse, "features"_a,
           nb::sig("def fuse(self, features: numpy.typing.NDArray[numpy.float32]) -> "
                   "numpy.typing.NDArray[numpy.float32]"),
           "features [n, feature_dim] of the target -> [n, hidden_dim]. Raises ForwardFailed.")
      .def("forward", &forward, "tokens"_a, "positions"_a, "hidden"_a, "logits_indices"_a,
           nb::sig("def forward(self, tokens: numpy.typing.NDArray[numpy.int64], "
                   "positions: numpy.typing.NDArray[numpy.int64], hidden: numpy.typing.NDArray[numpy.float32], "
                   "logits_indices: numpy.typing.NDArray[numpy.int64]) -> tuple[numpy.typing.NDArray[numpy.float32], "
                   "numpy.typing.NDArray[numpy.float32]]"),
           "One forward over the rows of the cache's open step: tokens [T], positions [T], hidden [T, hidden_dim], "
           "logits_indices [N] -> logits [N, vocab_size] and hidden [N, hidden_dim] of those rows. Raises "
           "ForwardFailed; abort the step then.");
}

// What both drafters have to say of themselves.
template <class Kind, class Class>
void bind_stats(Class& drafter) {
  drafter
      .def_prop_ro(
          "levels", [](const Kind& d) { return d.stats().levels; }, "Levels of draft trees that were asked for.")
      .def_prop_ro(
          "forwards", [](const Kind& d) { return d.stats().forwards; },
          "Forwards that they took: one per level for all branches together, more only where the rows exceed what the "
          "program takes.")
      .def_prop_ro(
          "prefills", [](const Kind& d) { return d.stats().prefills; },
          "Forwards that kept up with prompts as the target ran them.")
      .def_prop_ro(
          "seconds", [](const Kind& d) { return d.stats().seconds; }, "Time inside the program.")
      .def_prop_ro("cache", &Kind::cache, "The bookkeeping of the drafter's own cache.");
}

}  // namespace
}  // namespace agentkv

void bind_drafters(nb::module_& m) {
  using namespace agentkv;
  bind_head(m);
  const TreeOptions defaults;

  nb::class_<ModelDrafter, Drafter> model(
      m, "ModelDrafter", "Drafts with a second, smaller program: trees that grow by one forward per level.");
  model.def(
      "__init__",
      [](ModelDrafter* self, std::shared_ptr<ExecuTorchSession> session, std::int32_t width, std::int32_t top_k,
         std::int32_t vocab_size) {
        auto cache = session->cache();
        new (self) ModelDrafter(std::move(session), std::move(cache),
                                {.width = width, .top_k = top_k, .vocab_size = vocab_size});
      },
      "session"_a, nb::kw_only(), "width"_a = defaults.width, "top_k"_a = defaults.top_k,
      "vocab_size"_a = defaults.vocab_size,
      "session: this drafter's alone; its program speaks the target's vocabulary. Per branch and level, the `width` "
      "most likely nodes are run and get `top_k` children each. vocab_size: ids from it on are padding, which is never "
      "proposed; 0 where the program has none. Raises InvalidDrafter.");
  bind_stats<ModelDrafter>(model);

  nb::class_<EagleDrafter, Drafter> eagle(
      m, "EagleDrafter", "Drafts with an EAGLE-3 head over the target's features: one forward of the head per level.");
  eagle.def(
      "__init__",
      [](EagleDrafter* self, std::shared_ptr<ExecuTorchHeadSession> session, const std::vector<std::int32_t>& d2t,
         std::int32_t target_vocab_size, std::int32_t width, std::int32_t top_k, std::int32_t depth) {
        auto cache = session->cache();
        new (self) EagleDrafter(std::move(session), std::move(cache), d2t, target_vocab_size,
                                {.width = width, .top_k = top_k, .depth = depth});
      },
      "session"_a, "d2t"_a, "target_vocab_size"_a, nb::kw_only(), "width"_a = defaults.width,
      "top_k"_a = defaults.top_k, "depth"_a = defaults.depth,
      "session: this drafter's alone. d2t: token i of the head is token i + d2t[i] of the target; empty where the "
      "vocabularies are equal. Per branch and level, the `width` most likely nodes are run and get `top_k` children "
      "each. depth: levels of a draft at most; 0: as many as pay. Raises InvalidDrafter.");
  bind_stats<EagleDrafter>(eagle);
}
