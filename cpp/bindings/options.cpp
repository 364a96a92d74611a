// The options of a generation, which cross to the engine whole.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/fields.h"
#include "engine/jobs.h"
#include "engine/policy_options.h"

void bind_options(nanobind::module_& m) {
  using namespace agentkv;
  nanobind::class_<Sampling> sampling(
      m, "Sampling",
      "How a token is drawn; agentkv.Sampling says what each field means. Ranges are checked where it is used.");
  bind_fields(sampling, kSamplingFields);
  nanobind::class_<GenerateOptions> options(
      m, "GenerateOptions",
      "max_tokens: at least 1. stop: strings that end it. seed: of its draws, 0 <= seed < 2**64. emit: each token "
      "appears in StepReport.emitted; with emit_ahead above 0 the generation pauses while so many of them are not "
      "`taken`. drafter: guesses tokens, so that the same ones take fewer forwards. constraint: what may be "
      "said. top_logprobs: 0 to 20, how many of the likeliest tokens are told with each. made, output_made: so many "
      "tokens at the end of the branch are of this generation already: penalties count those, and the output under a "
      "constraint began with these. pauses: numbers of tokens, in order, at which it waits for room (wait_for_room) "
      "whatever "
      "there is, as one did that is run again.");
  bind_fields(options, kGenerateFields);
  nanobind::class_<PolicyOptions> policy(m, "PolicyOptions",
                                         "The constants of the drafting policy; engine/policy_options.h has reasons.");
  bind_fields(policy, kPolicyFields);
}
