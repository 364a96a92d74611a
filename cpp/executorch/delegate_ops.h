// Row operations of the delegate. Each output row follows from its own input row in one fixed order of operations,
// whatever else is in the call and on however many threads it runs.
#pragma once

#include <cstdint>
#include <span>

#include "cpu/heads_view.h"

namespace agentkv::delegate {

// All of these take views of equal heads, tokens and dim; src and dst may be the same memory.
void copy_rows(cpu::HeadsView src, cpu::MutableHeadsView dst);

// weight [dim].
void rms_norm(cpu::HeadsView src, std::span<const float> weight, float eps, cpu::MutableHeadsView dst);

// position [T], inv_freq [F] -> dst [T, 2 F]: F cosines, then F sines.
void rope_table(std::span<const std::int64_t> position, std::span<const float> inv_freq, float scaling,
                cpu::MutableHeadsView dst);

// table [T, 2 F] with 2 F <= dim; the dimensions from 2 F on are copied.
void rope(cpu::HeadsView src, cpu::HeadsView table, bool interleaved, cpu::MutableHeadsView dst);

}  // namespace agentkv::delegate
