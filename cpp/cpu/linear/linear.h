// Linear layers over packed weights and quantised rows.
#pragma once

#include <cstddef>
#include <span>

#include "cpu/heads_view.h"
#include "cpu/linear/packed_linear.h"
#include "cpu/linear/quantized_rows.h"

namespace agentkv::cpu {

// x [T, inputs] times W^T, plus bias [outputs] unless that is empty -> y [T, outputs] float32, row t at y + t *
// y_stride (in floats). The bits of a row of y depend on that row of x alone: not on the others, the threads, or the
// instruction set. Throws InvalidTensor where shapes do not fit.
void linear(const QuantizedRows& x, const PackedLinear& weight, std::span<const float> bias, float* y,
            std::size_t y_stride, const ParallelFor& parallel_for);

}  // namespace agentkv::cpu
