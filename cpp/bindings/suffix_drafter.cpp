// The drafter that continues the longest text that a branch ends with.
#include "spec/suffix_drafter.h"

#include <nanobind/nanobind.h>

#include <cstdint>

#include "bindings/arrays.h"
#include "bindings/tokens.h"

namespace nb = nanobind;
using namespace nb::literals;

void bind_suffix_drafter(nb::module_& m) {
  using namespace agentkv;
  const SuffixOptions defaults;
  nb::class_<SuffixDrafter, Drafter>(
      m, "SuffixDrafter",
      "Guesses that a branch goes on as the longest text that it ends with went on before, in any branch of the engine "
      "or a corpus. Costs no forward.")
      .def(
          "__init__",
          [](SuffixDrafter* self, std::int32_t max_nodes, std::int64_t max_tokens, nb::handle spellings) {
            new (self)
                SuffixDrafter({.max_nodes = max_nodes, .max_tokens = max_tokens, .spellings = tokens_of(spellings)});
          },
          nb::kw_only(), "max_nodes"_a = defaults.max_nodes, "max_tokens"_a = defaults.max_tokens,
          "spellings"_a = nb::tuple(),
          "A draft has at most max_nodes nodes. max_tokens of text are kept; the oldest is forgotten. spellings: for "
          "each token one that is the same word, by which a lone token is found as well. Raises InvalidDrafter.")
      .def(
          "read_corpus", [](SuffixDrafter& self, nb::handle text) { self.read_corpus(tokens_of(text)); }, "text"_a,
          "Text of earlier processes, tokens of the vocabulary. Call it before the drafter is attached.")
      .def(
          "new_text",
          [](const SuffixDrafter& self) {
            nb::list texts;
            for (const auto& text : self.new_text()) texts.append(copied_array<Token>(text));
            return texts;
          },
          nb::sig("def new_text(self) -> list[numpy.typing.NDArray[numpy.int32]]"),
          "What the branches brought that the drafter did not know, oldest first.");
}
