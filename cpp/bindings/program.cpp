// ExecuTorch programs, the sessions over them, and the thread pool that they share.
#include "executorch/program.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/byte_layer.h"
#include "bindings/make_session.h"
#include "executorch/cpu/cpu_backend.h"
#include "executorch/log_capture.h"
#include "executorch/session.h"
#include "executorch/threads.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace agentkv {
namespace {

nb::dict metadata(const ExecuTorchProgram& program) {
  const KvArchitecture& model = program.architecture();
  nb::dict out;
  out["kv_cache.schema_version"] = model.schema_version;
  out["kv_cache.n_layers"] = model.n_layers;
  out["kv_cache.n_kv_heads"] = model.n_kv_heads;
  out["kv_cache.head_dim"] = model.head_dim;
  if (!model.windows.empty()) {
    nb::list windows;
    for (const Pos window : model.windows) windows.append(window);
    out["kv_cache.windows"] = windows;
  }
  if (!model.shapes.empty()) {
    nb::list shapes;
    for (const LayerShape& shape : model.shapes) {
      for (const int number : {shape.n_kv_heads, shape.k_dim, shape.v_dim, static_cast<int>(shape.kept)}) {
        shapes.append(number);
      }
      if (model.schema_version >= 3) shapes.append(shape.v_heads);
    }
    out["kv_cache.shapes"] = shapes;
  }
  return out;
}

nb::dict info(const ExecuTorchProgram& program) {
  nb::dict out;
  out["vocab_size"] = program.info().vocab_size;
  out["max_tokens"] = program.info().max_tokens;
  out["max_logits"] = program.info().max_logits;
  out["feature_dim"] = program.info().feature_dim;
  return out;
}

void bind_loaded_program(nb::module_& m) {
  auto program =
      nb::class_<ExecuTorchProgram>(m, "ExecuTorchProgram", nb::is_weak_referenceable(),
                                    "A .pte loaded into this process. Its weights are loaded once, whatever number of "
                                    "sessions run over it; forwards of its sessions take turns.")
          .def(nb::init<std::string, std::string>(), "path"_a, "backend_id"_a = "AgentKVCPU",
               nb::call_guard<nb::gil_scoped_release>(),
               "Raises ProgramError for a file that is missing, damaged, foreign, of an unknown schema version, or "
               "made for "
               "a backend that is not here.")
          .def_prop_ro("path", &ExecuTorchProgram::path)
          .def_prop_ro("backend_id", &ExecuTorchProgram::backend_id)
          .def_prop_ro("metadata", &metadata, nb::sig("def metadata(self) -> dict[str, int | list[int]]"),
                       "The program's `kv_cache.*` constants: facts of the architecture.")
          .def_prop_ro("info", &info, nb::sig("def info(self) -> dict[str, int]"),
                       "vocab_size, max_tokens, max_logits and feature_dim.");
  def_make_session<ExecuTorchSession, ExecuTorchProgram>(program);
}

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using AdapterLayers = std::vector<std::tuple<int, Matrix, Matrix>>;

AdapterId add_adapter(ExecuTorchSession& session, const std::vector<std::pair<std::string, AdapterLayers>>& weights) {
  cpu::Adapter adapter;
  for (const auto& [name, given] : weights) {
    std::vector<cpu::LowRank> layers;
    for (const auto& [first, a, b] : given) {
      layers.push_back({.first = first,
                        .outputs = static_cast<int>(b.shape(0)),
                        .rank = static_cast<int>(b.shape(1)),
                        .a = {a.data(), a.size()},
                        .b = {b.data(), b.size()}});
    }
    const int inputs = given.empty() ? 0 : static_cast<int>(std::get<1>(given.front()).shape(1));
    adapter.add(name, cpu::AdapterWeight(inputs, layers));
  }
  return session.add_adapter(std::move(adapter));
}

void bind_session(nb::module_& m) {
  nb::class_<ExecuTorchSession, ModelRunner> session(
      m, "ExecuTorchSession", "One cache over a loaded program. Belongs to one thread at a time.");
  def_cells(session, [](ExecuTorchSession& self) -> ByteLayer& { return self.layer(); });
  session
      .def_prop_ro(
          "cache", [](const ExecuTorchSession& s) { return std::shared_ptr<TreeSeqCache>(s.cache()); },
          "The bookkeeping: which sequence holds which cells.")
      .def_prop_ro("program", &ExecuTorchSession::program)
      .def("add_adapter", &add_adapter, "weights"_a,
           nb::sig(
               "def add_adapter(self, weights: collections.abc.Sequence[tuple[str, collections.abc.Sequence[tuple[int, "
               "numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.float32]]]]]) -> int"),
           "Takes a copy of a LoRA adapter, by the names of weights: of each layer the first of its outputs among the "
           "weight's, A [rank, inputs] and B [outputs, rank] with the scale in it. Returns its id, for "
           "`Engine.create` and `Engine.set_adapter`. Raises ProgramError, InvalidTensor.")
      .def_prop_ro(
          "kv_bytes", [](const ExecuTorchSession& s) { return s.layer().bytes(); },
          "Bytes of memory that K and V of all layers take now.")
      .def_prop_ro(
          "states", [](const ExecuTorchSession& s) { return s.layer().states(); }, "States that are kept now.")
      .def_prop_ro(
          "mapped_bytes", [](const ExecuTorchSession& s) { return s.layer().mapped_bytes(); },
          "Bytes of K and V that are pages of files, beside `kv_bytes`.")
      .def_prop_ro(
          "allocated_cells", [](const ExecuTorchSession& s) { return s.layer().allocated_cells(); },
          "Cells that have memory now; grows by doubling up to the capacity.");
}

}  // namespace
}  // namespace agentkv

void bind_program(nb::module_& m) {
  using namespace agentkv;
  install_log_capture();
  register_cpu_backend();
  bind_loaded_program(m);
  bind_session(m);
  m.def("get_threads", &get_threads, "Number of threads of the process-wide pool.");
  m.def("set_threads", &set_threads, "n"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Replaces the process-wide pool by one of n threads, 1 to 1024, once the forwards that run now are done.");
}
