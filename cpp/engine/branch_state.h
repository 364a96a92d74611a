// The state that travels with a branch: a fork copies it, a rollback cuts it, an adoption takes it over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/adapter_spans.h"
#include "engine/lineage.h"
#include "engine/logits_row.h"
#include "engine/output.h"
#include "engine/philox.h"
#include "engine/types.h"

namespace agentkv {

// Positions [first, last) were forgotten when the log had `at` tokens: the last of these, and what came behind, was
// computed without them.
struct Forgotten {
  Pos first;
  Pos last;
  Pos at;
  bool for_room = false;  // there was no room for them: no rollback takes it back

  Pos since() const { return at - 1; }  // the first position that does not see them
  bool operator==(const Forgotten&) const = default;
};

// Whatever else a branch comes to know of its history belongs here, so that these three verbs are written once.
struct BranchState {
  std::vector<Token> log = {};            // the end of it may be pending: not in the cache yet
  LogitsRow next_logits = {};             // after log; null unless all of log is cached and they are known
  std::uint64_t rng_stream = 0;           // of random numbers
  std::uint32_t forks = 0;                // how many children drew a stream from this one
  Output output = {};                     // the last one under a constraint
  Lineage lineage = {};                   // of log
  AdapterSpans adapters = {};             // of log, and of the token that is next
  bool lends = true;                      // its cells serve others that begin alike
  std::vector<Forgotten> forgotten = {};  // in the order of `at`
  // Cells of earlier positions, sinks apart, are no basis to go back to: see BranchTable::drop_cells.
  Pos exact_from = 0;
  // Its first so many tokens are those of another, with which it could not share them: others may begin so, too.
  Pos parts_at = 0;
  Pos discarded_to = 0;  // as quantized_to, see BranchTable::discard_old
  Pos quantized_to = 0;  // so far cells were looked at, whether they are old: see BranchTable::quantize_old

  // What the next child begins with. The caller counts it in `forks` once the child stands.
  BranchState child() const {
    return {log,        next_logits, child_stream(rng_stream, forks), 0, output, lineage, adapters, lends, forgotten,
            exact_from, parts_at};
  }

  void roll_back(Pos length) {
    log.resize(static_cast<std::size_t>(length));
    next_logits.reset();
    output.roll_back(length);
    adapters.cut(length);
  }
};

}  // namespace agentkv
