// The drafter that continues a branch as its text did before.
#include "spec/prompt_lookup.h"

#include <nanobind/nanobind.h>

#include <cstdint>

namespace nb = nanobind;
using namespace nb::literals;

void bind_prompt_lookup(nb::module_& m) {
  using namespace agentkv;
  const PromptLookupOptions defaults;
  nb::class_<PromptLookup, Drafter>(
      m, "PromptLookup",
      "Guesses that a branch goes on as this text did before, in its own history or in that of "
      "any branch of the engine. Costs no forward.")
      .def(
          "__init__",
          [](PromptLookup* self, std::int32_t max_ngram, std::int32_t min_ngram, std::int32_t max_nodes,
             std::int32_t width, std::int32_t max_chain, std::int64_t max_tokens) {
            new (self) PromptLookup({.max_ngram = max_ngram,
                                     .min_ngram = min_ngram,
                                     .max_nodes = max_nodes,
                                     .width = width,
                                     .max_chain = max_chain,
                                     .max_tokens = max_tokens});
          },
          nb::kw_only(), "max_ngram"_a = defaults.max_ngram, "min_ngram"_a = defaults.min_ngram,
          "max_nodes"_a = defaults.max_nodes, "width"_a = defaults.width, "max_chain"_a = defaults.max_chain,
          "max_tokens"_a = defaults.max_tokens,
          "The last tokens of a branch, max_ngram of them at most and min_ngram at least, are looked up in the newest "
          "max_chain places where they occurred. A draft has at most max_nodes nodes and `width` continuations that "
          "differ. max_tokens of text are kept; the oldest is forgotten. Raises InvalidDrafter.");
}
