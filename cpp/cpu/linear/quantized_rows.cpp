#include "cpu/linear/quantized_rows.h"

#include <cstring>

#include "core/errors.h"
#include "core/message.h"
#include "cpu/tasks.h"

namespace agentkv::cpu {
namespace {

template <class T>
T* room(std::vector<T>& buffer, std::size_t n) {
  if (buffer.size() < n) buffer.resize(n);
  return buffer.data();
}

}  // namespace

void QuantizedRows::make_room(int rows, int inputs) {
  rows_ = rows;
  inputs_ = inputs;
  // Kernels may begin at any row (those of an expert), and read a block from there.
  const auto kept = static_cast<std::size_t>(rows + kRowBlock);
  const auto padded = static_cast<std::size_t>((inputs + kInputs - 1) / kInputs * kInputs);
  // A line more: rows a power of two apart would share the same few lines of a cache.
  view_.stride = padded + 64;
  view_.sum_stride = padded / kSums;
  std::int8_t* codes = room(codes_, kept * view_.stride + 64);
  view_.codes = codes + (64 - reinterpret_cast<std::uintptr_t>(codes) % 64) % 64;
  view_.sums = room(sums_, kept * (view_.sum_stride + 1));
  view_.totals = view_.sums + kept * view_.sum_stride;
  view_.scales = room(scales_, kept);
  view_.zeros = room(zeros_, kept);
}

void QuantizedRows::pick(const QuantizedRows& from, std::span<const std::int32_t> rows) {
  make_room(static_cast<int>(rows.size()), from.inputs_);
  const RowCodes& source = from.view_;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto row = static_cast<std::size_t>(rows[r]);
    std::memcpy(view_.codes + r * view_.stride, source.codes + row * source.stride, source.stride - 64);
    std::memcpy(view_.sums + r * view_.sum_stride, source.sums + row * source.sum_stride,
                source.sum_stride * sizeof(*view_.sums));
    view_.totals[r] = source.totals[row];
    view_.scales[r] = source.scales[row];
    view_.zeros[r] = source.zeros[row];
  }
}

void QuantizedRows::assign(const float* x, int rows, int inputs, std::size_t stride, const ParallelFor& parallel_for) {
  require<InvalidTensor>(rows >= 0 && inputs > 0 && stride >= static_cast<std::size_t>(inputs), rows, " rows of ",
                         inputs, " inputs, ", stride, " apart: give at least one input, and rows that do not overlap");
  make_room(rows, inputs);
  const auto quantize = linear_kernels().quantize_row;
  run_rows(rows, inputs, parallel_for,
           [&](int r) { quantize(x + static_cast<std::size_t>(r) * stride, inputs, view_, r); });
}

}  // namespace agentkv::cpu
