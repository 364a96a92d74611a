// The CPU byte layer by itself, over NumPy arrays: what tests and benchmarks drive.
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

#include "core/message.h"
#include "core/seq_cells.h"
#include "core/tree_cells.h"
#include "cpu/dispatch.h"
#include "cpu/kv_cache.h"
#include "executorch/threads.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace agentkv {
namespace {

using cpu::HeadsView;
using cpu::KvCache;
using Positions = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Heads = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using OutHeads = nb::ndarray<nb::numpy, float, nb::ndim<3>>;

HeadsView view(const Heads& a) {
  const auto heads = static_cast<std::int32_t>(a.shape(0)), tokens = static_cast<std::int32_t>(a.shape(1));
  const auto dim = static_cast<std::int32_t>(a.shape(2));
  return {a.data(), heads, tokens, dim, std::int64_t{tokens} * dim, dim};
}

template <class Cells>
std::shared_ptr<KvCache> make_cache(std::shared_ptr<Cells> cells, int n_layers, int n_kv_heads, int head_dim,
                                    const std::string& kv_dtype, Cell min_chunk) {
  CacheConfig config;
  config.n_layers = n_layers;
  config.n_kv_heads = n_kv_heads;
  config.head_dim = head_dim;
  config.capacity = cells->capacity();
  config.min_chunk = min_chunk;
  config.kv_dtype = kv_dtype.c_str();
  config.max_sequences = cells->max_sequences();
  return std::make_shared<KvCache>(config, std::move(cells), parallel_for);
}

OutHeads update_and_attend(KvCache& cache, int layer, const Positions& positions, const Heads& q, const Heads& k,
                           const Heads& v, float scale, Pos window, Pos sinks) {
  auto* out = new std::vector<float>(q.size());
  nb::capsule owner(out, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  const HeadsView queries = view(q);
  {
    nb::gil_scoped_release release;
    const ForwardGate gate;
    const auto spec = cache.update_and_fetch(layer, {positions.data(), positions.size()}, view(k), view(v));
    cache.attend(spec, queries, scale, window,
                 {out->data(), queries.heads, queries.tokens, queries.dim, queries.head_stride, queries.token_stride},
                 sinks);
  }
  const std::size_t shape[] = {q.shape(0), q.shape(1), q.shape(2)};
  return {out->data(), 3, shape, owner};
}

void move_cells(KvCache& cache, const std::vector<Cell>& src, const std::vector<Cell>& dst) {
  if (src.size() != dst.size()) {
    throw InvalidRange(error_text(src.size(), " source cells for ", dst.size(), " destinations"));
  }
  cache.move_cells(src.data(), dst.data(), src.size());
}

}  // namespace
}  // namespace agentkv

void bind_cpu(nb::module_& m) {
  using namespace agentkv;
  nb::class_<KvCache>(m, "CpuCache", "K and V pools in host memory, and attention over the plans of a bookkeeping.")
      .def(nb::new_(&make_cache<SeqCells>), "cells"_a, "n_layers"_a, "n_kv_heads"_a, "head_dim"_a,
           "kv_dtype"_a = "fp16", "min_chunk"_a = 256,
           "head_dim: a multiple of 8 up to 256; kv_dtype: \"fp32\", \"fp16\" or \"bf16\". Raises InvalidTensor.")
      .def(nb::new_(&make_cache<TreeCells>), "cells"_a, "n_layers"_a, "n_kv_heads"_a, "head_dim"_a,
           "kv_dtype"_a = "fp16", "min_chunk"_a = 256)
      .def("update_and_attend", &update_and_attend, "layer"_a, "positions"_a, "q"_a, "k"_a, "v"_a, "scale"_a,
           "window"_a = 0, "sinks"_a = 0,
           "Stores K and V [n_kv_heads, T, head_dim] of the open step's rows and returns attention of q [n_heads, T, "
           "head_dim] over what each row sees, float32 [n_heads, T, head_dim]. positions: int64 [T]. window > 0 hides "
           "positions <= the row's - window, except the first `sinks`. Raises InvalidTensor, InvalidStep, CacheFull.")
      .def("move_cells", &move_cells, "src"_a, "dst"_a,
           "Copies cell src[i] to dst[i] in every layer, as if all were read first. Raises InvalidRange.")
      .def_prop_ro("bytes", &KvCache::bytes, "K and V bytes allocated now, all layers.")
      .def_prop_ro("allocated_cells", &KvCache::allocated_cells);
  m.def(
      "cpu_isas",
      [] {
        std::vector<std::string> names;
        for (const std::string_view name : cpu::available_isas()) names.emplace_back(name);
        return names;
      },
      "Instruction sets that this build and this machine both have, best first.");
  m.def("get_cpu_isa", [] { return std::string(cpu::kernels().isa); }, "The instruction set in use.");
  m.def(
      "set_cpu_isa", [](const std::string& isa) { cpu::set_isa(isa); }, "isa"_a,
      "Uses another of cpu_isas() from now on; the environment variable AGENTKV_CPU_ISA sets the first. Raises "
      "InvalidTensor.");
}
