// Some panels of a weight times some rows: what one task of a linear layer computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/kernels/linear_table.h"
#include "cpu/linear/packed_linear.h"

namespace agentkv::cpu {

struct Panels {
  int first = 0, count = 0;
};

// How many of them `rows` rows are given at a time, so that memory streams and threads end together.
int panels_per_task(std::size_t panel_bytes, int rows);
int panels_of(const LinearShape& shape);

// This thread's memory for the sums of `rows` rows and a panel, 64-byte aligned; until it asks for more.
float* scratch_of(int rows);

// Where rows of y lie, and which of them the rows of a product are; an empty order: the first ones.
struct Destination {
  float* y;
  std::size_t stride;  // in floats
  std::span<const std::int32_t> order;
};

// Codes of rows times codes; bias [outputs] of the whole weight, or empty.
void multiply_panels(const PackedLinear& weight, Panels panels, const RowCodes& x, int rows,
                     std::span<const float> bias, const Destination& to);

// Rows of floats times floats.
struct FloatRowsView {
  const float* x;
  std::size_t stride;  // in floats
  std::span<const std::int32_t> order;
};
void multiply_panels(const PackedLinear& weight, Panels panels, const FloatRowsView& x, std::span<const float> bias,
                     const Destination& to);

}  // namespace agentkv::cpu
