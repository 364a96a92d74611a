// The CPU byte layer by itself, over NumPy arrays: what tests and benchmarks drive.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/byte_layer.h"
#include "core/isa.h"
#include "cpu/kv_cache.h"
#include "executorch/threads.h"

namespace agentkv {
namespace {

using cpu::HeadsView;
using cpu::KvCache;

HeadsView view(const Heads& a) {
  const auto heads = static_cast<std::int32_t>(a.shape(0)), tokens = static_cast<std::int32_t>(a.shape(1));
  const auto dim = static_cast<std::int32_t>(a.shape(2));
  return {a.data(), heads, tokens, dim, std::int64_t{tokens} * dim, dim};
}

std::shared_ptr<KvCache> make_cache(std::shared_ptr<Cells> cells, int n_layers, int n_kv_heads, int head_dim,
                                    const std::string& kv_dtype, Cell min_chunk) {
  return make_layer<KvCache>(std::move(cells), n_layers, n_kv_heads, head_dim, kv_dtype, min_chunk, parallel_for);
}

OutHeads update_and_attend(KvCache& cache, int layer, const Positions& positions, const Heads& q, const Heads& k,
                           const Heads& v, float scale, Pos window, Pos sinks) {
  const HeadsView queries = view(q);
  return filled(q.shape(0), q.shape(1), q.shape(2), [&](float* out) {
    const ForwardGate gate;
    const auto spec = cache.update_and_fetch(layer, {positions.data(), positions.size()}, view(k), view(v));
    cache.attend(spec, queries, {.scale = scale}, {.window = window, .sinks = sinks},
                 {out, queries.heads, queries.tokens, queries.dim, queries.head_stride, queries.token_stride});
  });
}

}  // namespace
}  // namespace agentkv

void bind_cpu(nanobind::module_& m) {
  using namespace agentkv;
  using namespace nb::literals;
  bind_byte_layer<KvCache>(m, "CpuCache",
                           "K and V pools in host memory, and attention over the plans of a bookkeeping.",
                           "head_dim: a multiple of 8 up to 2048; kv_dtype: \"fp32\", \"fp16\", \"bf16\", \"int8\", "
                           "\"int4\" or \"int8/int4\" (keys, values). Raises InvalidTensor.",
                           &make_cache, &update_and_attend);
  m.def(
      "cpu_isas",
      [] {
        std::vector<std::string> names;
        for (const std::string_view name : available_isas()) names.emplace_back(name);
        return names;
      },
      "Instruction sets that this build and this machine both have, best first.");
  m.def("get_cpu_isa", [] { return std::string(isa()); }, "The instruction set in use.");
  m.def(
      "set_cpu_isa", [](const std::string& name) { set_isa(name); }, "isa"_a,
      "Uses another of cpu_isas() from now on; the environment variable AGENTKV_CPU_ISA sets the first. Raises "
      "InvalidTensor.");
}
