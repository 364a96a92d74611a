#include "cpu/blocks/activation_blocks.h"

#include <algorithm>

#include "core/errors.h"
#include "core/message.h"
#include "cpu/tasks.h"

namespace agentkv::cpu {
namespace {

// So many that it is worth waking another thread.
constexpr int kInputsPerTask = 1 << 12;

template <class T>
T* room(std::vector<T>& buffer, std::size_t n) {
  if (buffer.size() < n) buffer.resize(n);
  return buffer.data();
}

}  // namespace

void ActivationBlocks::make_room(int rows, int inputs, int block, int group) {
  const auto kept = static_cast<std::size_t>(rows + kRowBlock);  // kernels read a block of rows past the last one, too
  // A line more: rows a power of two apart would share the same few lines of a cache.
  view_.stride = static_cast<std::size_t>(inputs) + 64;
  view_.sum_stride = static_cast<std::size_t>(inputs / group + inputs / group % 2);
  view_.base_stride = static_cast<std::size_t>(inputs / group);
  view_.scale_stride = static_cast<std::size_t>(inputs / block);
  std::int8_t* codes = room(codes_, kept * view_.stride + 64);
  view_.codes = codes + (64 - reinterpret_cast<std::uintptr_t>(codes) % 64) % 64;
  view_.sums = room(sums_, kept * view_.sum_stride);
  view_.bases = room(bases_, kept * view_.base_stride);
  view_.scales = room(scales_, 2 * kept * view_.scale_stride);
  view_.offsets = view_.scales + kept * view_.scale_stride;
  view_.rows = rows;
  view_.together = block_kernels().rows_together(rows);
}

void ActivationBlocks::assign(const float* x, int rows, int inputs, std::size_t stride, BlockType type,
                              const ParallelFor& parallel_for) {
  const BlockTypeInfo& info = block_type_info(static_cast<std::int32_t>(type));
  require<InvalidTensor>(rows >= 0 && inputs > 0 && stride >= static_cast<std::size_t>(inputs), rows, " rows of ",
                         inputs, " inputs, ", stride, " apart: give at least one input, and rows that do not overlap");
  require<InvalidTensor>(info.group > 0 && inputs % info.inputs == 0, inputs, " inputs do not divide into blocks of ",
                         info.name);
  const auto quantize = block_kernels().quantize[info.format];
  make_room(rows, inputs, info.inputs, info.group);
  // Pieces of rows that lie together, with an even number of groups.
  const int together = std::min(rows, view_.together), blocks = inputs / info.inputs;
  const int piece = std::max(1, kInputsPerTask / (2 * info.inputs * together)) * 2;
  const int pieces = (blocks + piece - 1) / piece;
  const int tasks = (rows + together - 1) / together * pieces;
  run_tasks(static_cast<std::size_t>(tasks), parallel_for, [&](std::size_t i) {
    const int row = static_cast<int>(i) / pieces * together, begin = static_cast<int>(i) % pieces * piece;
    quantize({x, stride, view_, row, begin, std::min(blocks, begin + piece)});
  });
}

}  // namespace agentkv::cpu
