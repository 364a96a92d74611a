#include "cpu/blocks/activation_blocks.h"

#include <cstring>

#include "core/errors.h"
#include "core/message.h"
#include "cpu/tasks.h"

namespace agentkv::cpu {
namespace {

constexpr std::size_t kLine = 64;

template <class T>
T* room(std::vector<T>& buffer, std::size_t n) {
  if (buffer.size() < n) buffer.resize(n);
  return buffer.data();
}

}  // namespace

void ActivationBlocks::make_room(int rows, std::size_t stride, std::size_t sum_stride, std::size_t scale_stride) {
  // Kernels may begin at any row (those of an expert), and read a block from there.
  const auto kept = static_cast<std::size_t>(rows + kRowBlock);
  view_.stride = stride;
  view_.sum_stride = sum_stride;
  view_.scale_stride = scale_stride;
  std::int8_t* codes = room(codes_, kept * view_.stride + 64);
  view_.codes = codes + (64 - reinterpret_cast<std::uintptr_t>(codes) % 64) % 64;
  view_.sums = room(sums_, kept * view_.sum_stride);
  view_.scales = room(scales_, 2 * kept * view_.scale_stride);
  view_.offsets = view_.scales + kept * view_.scale_stride;
}

void ActivationBlocks::assign(const float* x, int rows, int inputs, std::size_t stride, BlockType type,
                              const ParallelFor& parallel_for) {
  const BlockTypeInfo& info = block_type_info(static_cast<std::int32_t>(type));
  require<InvalidTensor>(rows >= 0 && inputs > 0 && stride >= static_cast<std::size_t>(inputs), rows, " rows of ",
                         inputs, " inputs, ", stride, " apart: give at least one input, and rows that do not overlap");
  require<InvalidTensor>(info.group > 0 && inputs % info.inputs == 0, inputs, " inputs do not divide into blocks of ",
                         info.name);
  // A line more: rows a power of two apart would share the same few lines of a cache.
  make_room(rows, static_cast<std::size_t>(inputs) + kLine, static_cast<std::size_t>(inputs / info.group),
            static_cast<std::size_t>(inputs / info.inputs));
  const auto quantize = block_kernels().quantize_row;
  run_rows(rows, inputs, parallel_for, [&](int r) {
    quantize(x + static_cast<std::size_t>(r) * stride, inputs, info.inputs, info.group, view_, r);
  });
}

void ActivationBlocks::pick(const ActivationBlocks& from, std::span<const std::int32_t> rows) {
  const ActivationCodes& source = from.view_;
  make_room(static_cast<int>(rows.size()), source.stride, source.sum_stride, source.scale_stride);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto row = static_cast<std::size_t>(rows[r]);
    const auto copy = [&](auto* to, const auto* at, std::size_t stride, std::size_t n) {
      std::memcpy(to + r * stride, at + row * stride, n * sizeof(*to));
    };
    copy(view_.codes, source.codes, source.stride, source.stride - kLine);
    copy(view_.sums, source.sums, source.sum_stride, source.sum_stride);
    copy(view_.scales, source.scales, source.scale_stride, source.scale_stride);
    copy(view_.offsets, source.offsets, source.scale_stride, source.scale_stride);
  }
}

}  // namespace agentkv::cpu
