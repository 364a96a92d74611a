// ExecuTorch programs, the sessions over them, and the thread pool that they share.
#include "executorch/program.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>

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

template <class Face>
std::shared_ptr<ExecuTorchSession> make_session(std::shared_ptr<ExecuTorchProgram> program, Cell capacity,
                                                std::string kv_dtype, Cell min_chunk, SeqId max_sequences) {
  return ExecuTorchSession::make<Face>(std::move(program),
                                       SessionOptions{capacity, std::move(kv_dtype), min_chunk, max_sequences});
}

void bind_loaded_program(nb::module_& m) {
  nb::class_<ExecuTorchProgram>(m, "ExecuTorchProgram", nb::is_weak_referenceable(),
                                "A .pte loaded into this process. Its weights are loaded once, whatever number of "
                                "sessions run over it; forwards of its sessions take turns.")
      .def(
          nb::init<std::string, std::string>(), "path"_a, "backend_id"_a = "AgentKVCPU",
          nb::call_guard<nb::gil_scoped_release>(),
          "Raises ProgramError for a file that is missing, damaged, foreign, of an unknown schema version, or made for "
          "a backend that is not here.")
      .def_prop_ro("path", &ExecuTorchProgram::path)
      .def_prop_ro("backend_id", &ExecuTorchProgram::backend_id)
      .def_prop_ro("metadata", &metadata, nb::sig("def metadata(self) -> dict[str, int | list[int]]"),
                   "The program's `kv_cache.*` constants: facts of the architecture.")
      .def_prop_ro("info", &info, nb::sig("def info(self) -> dict[str, int]"),
                   "vocab_size, max_tokens, max_logits and feature_dim.")
      .def("make_seq_session", &make_session<SeqCache>, nb::kw_only(), "capacity"_a, "kv_dtype"_a = "fp16",
           "min_chunk"_a = 256, "max_sequences"_a = kDefaultMaxSequences,
           "A cache of `capacity` cells over this program. K and V are kept as `kv_dtype` (fp32, fp16 or bf16) and "
           "allocated as needed, min_chunk cells first. Raises InvalidTensor, InvalidRange or RegistryError.")
      .def("make_tree_session", &make_session<TreeSeqCache>, nb::kw_only(), "capacity"_a, "kv_dtype"_a = "fp16",
           "min_chunk"_a = 256, "max_sequences"_a = kDefaultMaxSequences,
           "The same with a TreeSeqCache, whose sequences can have draft nodes.");
}

void bind_session(nb::module_& m) {
  nb::class_<ExecuTorchSession, Program>(m, "ExecuTorchSession",
                                         "One cache over a loaded program. Belongs to one thread at a time.")
      .def_prop_ro("cache", &ExecuTorchSession::cache, "The bookkeeping: which sequence holds which cells.")
      .def_prop_ro("program", &ExecuTorchSession::program)
      .def_prop_ro(
          "kv_bytes", [](const ExecuTorchSession& s) { return s.layer().bytes(); },
          "Bytes that K and V of all layers take now.")
      .def_prop_ro(
          "allocated_cells", [](const ExecuTorchSession& s) { return s.layer().allocated_cells(); },
          "Cells that have memory now; grows by doubling up to the capacity.")
      .def(
          "fail_at", [](ExecuTorchSession& s, int layer, std::int64_t n) { s.faults().fail_at(layer, n); }, "layer"_a,
          "after_forwards"_a = 0,
          "A test aid: the forward after the next `after_forwards` ones fails before `layer` is written. Once.");
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
