// The options of a generation, which cross to the engine whole.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings/fields.h"
#include "engine/jobs.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace agentkv {
namespace {

void construct(GenerateOptions* self, std::int32_t max_tokens, const std::vector<nb::bytes>& stop,
               const Sampling& sampling, std::uint64_t seed, bool ignore_eos, bool emit, std::int32_t emit_ahead,
               std::shared_ptr<Drafter> drafter) {
  std::vector<std::string> stops;
  for (const nb::bytes& item : stop) stops.emplace_back(item.c_str(), item.size());
  new (self)
      GenerateOptions{max_tokens, std::move(stops), sampling, seed, ignore_eos, emit, emit_ahead, std::move(drafter)};
}

}  // namespace
}  // namespace agentkv

void bind_options(nb::module_& m) {
  using namespace agentkv;
  nb::class_<Sampling> sampling(
      m, "Sampling",
      "How a token is drawn; agentkv.Sampling says what each field means. Ranges are checked where it is used.");
  bind_constructor(sampling, kSamplingFields);
  bind_attributes(sampling, kSamplingFields);

  nb::class_<GenerateOptions>(m, "GenerateOptions", "What a generation is asked for.")
      .def("__init__", &construct, nb::kw_only(), "max_tokens"_a, "stop"_a = std::vector<nb::bytes>(),
           "sampling"_a.sig("Sampling()") = Sampling(), "seed"_a = 0, "ignore_eos"_a = false, "emit"_a = false,
           "emit_ahead"_a = 0, "drafter"_a = nb::none(),
           "max_tokens: at least 1. stop: strings that end it, as UTF-8. seed: of its draws, 0 <= seed < 2**64. emit: "
           "each token appears in StepReport.emitted; with emit_ahead above 0 the generation pauses while so many of "
           "them are not `taken`. drafter: guesses tokens, so that the same ones take fewer forwards.")
      .def_ro("max_tokens", &GenerateOptions::max_tokens)
      .def_prop_ro("stop",
                   [](const GenerateOptions& options) {
                     std::vector<nb::bytes> stops;
                     for (const std::string& item : options.stop) stops.emplace_back(item.data(), item.size());
                     return stops;
                   })
      .def_ro("sampling", &GenerateOptions::sampling)
      .def_ro("seed", &GenerateOptions::seed)
      .def_ro("ignore_eos", &GenerateOptions::ignore_eos)
      .def_ro("emit", &GenerateOptions::emit)
      .def_ro("emit_ahead", &GenerateOptions::emit_ahead)
      .def_ro("drafter", &GenerateOptions::drafter);
}
