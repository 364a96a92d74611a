#include "cpu/blocks/quantize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "core/errors.h"
#include "core/isa.h"
#include "core/message.h"
#include "cpu/blocks/packing.h"
#include "cpu/kernels/fit_table.h"
#include "cpu/tasks.h"

namespace agentkv::cpu {

AGENTKV_DEFINE_KERNELS(FitKernelTable, fit_kernels)

namespace {

using Pack = void (*)(const Block&, std::uint8_t*);

// By BlockFormat; null for formats that are not fitted.
constexpr auto kPacks = [] {
  std::array<Pack, kBlockFormats> all{};
#define AGENTKV_PACK(F) all[static_cast<std::size_t>(BlockFormat::F)] = F::pack;
  AGENTKV_EACH_FITTED_FORMAT(AGENTKV_PACK)
#undef AGENTKV_PACK
  return all;
}();

float number_at(BlockType from, const std::byte* row, std::size_t i) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(row);
  if (from == BlockType::F16) return float_of(ScaleKind::Binary16, load_u16(bytes + 2 * i));
  if (from == BlockType::BF16) return float_of(ScaleKind::Bfloat16, load_u16(bytes + 2 * i));
  float x;
  std::memcpy(&x, bytes + 4 * i, sizeof(x));
  return x;
}

std::uint16_t bfloat16_of(float x) {  // to nearest even
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// One weight on its way.
struct Work {
  BlockShape shape;
  BlockTypeInfo info;
  BlockType from;
  std::size_t number_row;  // bytes
  std::size_t row;
  const std::byte* numbers;
  const float* importance;
  std::byte* out;

  const std::byte* numbers_of(int output) const { return numbers + static_cast<std::size_t>(output) * number_row; }
  std::uint8_t* out_of(int output) const {
    return reinterpret_cast<std::uint8_t*>(out) + static_cast<std::size_t>(output) * row;
  }
};

[[noreturn]] void refuse(int output) {
  throw InvalidTensor(error_text("output ", output, " has a number that is not finite: its file is broken"));
}

QuantizationLoss round_row(const Work& work, int output) {
  QuantizationLoss loss;
  for (int k = 0; k < work.shape.inputs; ++k) {
    const float x = number_at(work.from, work.numbers_of(output), static_cast<std::size_t>(k));
    if (!std::isfinite(x)) refuse(output);
    const std::uint16_t rounded = bfloat16_of(x);
    store_u16(rounded, work.out_of(output) + 2 * k);
    const double wide = x, error = double{float_of(ScaleKind::Bfloat16, rounded)} - wide;
    loss.lost += error * error;
    loss.whole += wide * wide;
  }
  return loss;
}

void take_numbers(const Work& work, int first, int rows, int input, FitBlock& block) {
  for (int r = 0; r < rows; ++r) {
    const std::byte* from = work.numbers_of(first + r);
    bool finite = true;
    for (int k = 0; k < work.info.inputs; ++k) {
      const float x = number_at(work.from, from, static_cast<std::size_t>(input + k));
      finite &= std::abs(x) <= std::numeric_limits<float>::max();
      block.numbers[k][r] = x;
    }
    if (!finite) refuse(first + r);
  }
}

Block block_of(const FitBlock& fitted, int inputs, int r) {
  Block block;
  block.scale = fitted.scale[r];
  block.minimum = fitted.minimum[r];
  for (int g = 0; g < 16; ++g) {
    block.scales[g] = fitted.scales[g][r];
    block.minima[g] = fitted.minima[g][r];
  }
  for (int k = 0; k < inputs; ++k) block.codes[k] = fitted.codes[k][r];
  return block;
}

// Rows from `first` on, at most kFitRows.
QuantizationLoss fit_rows(const Work& work, int first, FitBlock& fitted) {
  const auto format = static_cast<std::size_t>(work.info.format);
  const int rows = std::min(kFitRows, work.shape.outputs - first);
  QuantizationLoss loss;
  for (int k = 0, b = 0; k < work.shape.inputs; k += work.info.inputs, ++b) {
    take_numbers(work, first, rows, k, fitted);
    fit_kernels().fit[format](fitted, work.importance + k);
    for (int r = 0; r < rows; ++r) {
      kPacks[format](block_of(fitted, work.info.inputs, r),
                     work.out_of(first + r) + static_cast<std::size_t>(b) * work.info.bytes);
      loss.lost += fitted.lost[r];
      loss.whole += fitted.whole[r];
    }
  }
  return loss;
}

void check(const Work& work, std::span<const std::byte> numbers, std::span<const float> importance,
           std::span<std::byte> out) {
  const auto outputs = static_cast<std::size_t>(work.shape.outputs);
  const bool fitted = work.info.format >= 0 && kPacks[static_cast<std::size_t>(work.info.format)] != nullptr;
  require<InvalidTensor>(fitted || work.info.type == BlockType::BF16, "weights are not quantised to ", work.info.name);
  require<InvalidTensor>(numbers.size() == outputs * work.number_row, numbers.size(), " bytes for numbers of ",
                         outputs * work.number_row);
  require<InvalidTensor>(importance.empty() || importance.size() == static_cast<std::size_t>(work.shape.inputs),
                         "importance of ", importance.size(), " inputs for a weight of ", work.shape.inputs);
  require<InvalidTensor>(out.size() == outputs * work.row, out.size(), " bytes for rows of ", outputs * work.row);
}

}  // namespace

QuantizationLoss quantize_blocks(const BlockShape& shape, BlockType from, std::span<const std::byte> numbers,
                                 std::span<const float> importance, std::span<std::byte> out,
                                 const ParallelFor& parallel_for) {
  const std::size_t row = block_row_bytes(shape), number_row = block_row_bytes({shape.outputs, shape.inputs, from});
  std::vector<float> ones(importance.empty() ? static_cast<std::size_t>(shape.inputs) : 0, 1.0f);
  const Work work{shape,          block_type_info(static_cast<std::int32_t>(shape.type)), from,      number_row, row,
                  numbers.data(), importance.empty() ? ones.data() : importance.data(),   out.data()};
  check(work, numbers, importance, out);
  const auto n_parts = static_cast<std::size_t>((shape.outputs + kFitRows - 1) / kFitRows);
  std::vector<QuantizationLoss> losses(n_parts);
  run_tasks(n_parts, parallel_for, [&](std::size_t part) {
    const int first = static_cast<int>(part) * kFitRows;
    if (work.info.format < 0) {
      for (int r = first; r < std::min(first + kFitRows, shape.outputs); ++r) {
        const QuantizationLoss of_row = round_row(work, r);
        losses[part].lost += of_row.lost;
        losses[part].whole += of_row.whole;
      }
    } else {
      const auto fitted = std::make_unique<FitBlock>();  // rows that there are none of are zeros
      losses[part] = fit_rows(work, first, *fitted);
    }
  });
  QuantizationLoss total;
  for (const QuantizationLoss& each : losses) {  // in order: sums are the same on any number of threads
    total.lost += each.lost;
    total.whole += each.whole;
  }
  return total;
}

}  // namespace agentkv::cpu
