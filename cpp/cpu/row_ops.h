// Operations on rows by themselves: copies, norms, ropes, sums, gates. Each output row follows from its own input row
// in one fixed order of operations, whatever else is in the call and on however many threads it runs.
#pragma once

#include <cstdint>
#include <span>

#include "cpu/heads_view.h"

namespace agentkv::cpu {

// Unless they say otherwise, these take views of equal heads, tokens and dim; src and dst may be the same memory.
void copy_rows(const HeadsView& src, const MutableHeadsView& dst, const ParallelFor& parallel_for);

// dst = src / sqrt(mean(src^2) + eps) * weight, per head and row. weight [dim].
void rms_norm(const HeadsView& src, std::span<const float> weight, float eps, const MutableHeadsView& dst,
              const ParallelFor& parallel_for);

// position [T], inv_freq [F] -> dst [T, 2 F]: F cosines of position * inv_freq, then F sines, times scaling.
void rope_table(std::span<const std::int64_t> position, std::span<const float> inv_freq, float scaling,
                const MutableHeadsView& dst, const ParallelFor& parallel_for);

// dst = src with its first 2 F dimensions turned, in pairs (i, i + F), or (2 i, 2 i + 1) when interleaved; the others
// are copied. table [T, 2 F].
void rope(const HeadsView& src, const HeadsView& table, bool interleaved, const MutableHeadsView& dst,
          const ParallelFor& parallel_for);

// dst = a + b.
void add_rows(const HeadsView& a, const HeadsView& b, const MutableHeadsView& dst, const ParallelFor& parallel_for);

// dst = a * b.
void multiply_rows(const HeadsView& a, const HeadsView& b, const MutableHeadsView& dst,
                   const ParallelFor& parallel_for);

// dst [1, T, dim] = the sum over heads h, in order, of weights[t, h] * src[h, t]. weights [1, T, heads]; dst is not
// src.
void weighted_sum(const HeadsView& src, const HeadsView& weights, const MutableHeadsView& dst,
                  const ParallelFor& parallel_for);

enum class Gate { Silu = 0, TanhGelu = 1, Sigmoid = 2, Softplus = 3 };

// dst = gate(src), times `up` where there is one.
void gate_rows(Gate gate, const HeadsView& src, const HeadsView* up, const MutableHeadsView& dst,
               const ParallelFor& parallel_for);

}  // namespace agentkv::cpu
