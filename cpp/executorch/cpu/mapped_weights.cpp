#include "executorch/cpu/mapped_weights.h"

#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "core/errors.h"
#include "core/message.h"
#include "platform/memory.h"

namespace agentkv {
namespace {

// The bytes of a name, of which there must be `wanted`.
executorch::runtime::FreeableBuffer find_bytes(const std::string& name, std::size_t wanted,
                                               const executorch::runtime::NamedDataMap* data) {
  require<ProgramError>(data != nullptr, "the program has no weights; export the model again");
  auto found = data->get_data(name);
  require<ProgramError>(found.ok(), "the program has no weight ", name, "; export the model again");
  require<ProgramError>(found->size() == wanted, "weight ", name, " has ", found->size(), " bytes, not ", wanted,
                        "; export the model again");
  return std::move(found.get());
}

std::span<const std::byte> span_of(const executorch::runtime::FreeableBuffer& bytes) {
  return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
}

}  // namespace

MappedWeights::MappedWeights(const delegate::Blob& blob, const executorch::runtime::NamedDataMap* data) {
  const auto packed = [&](const auto& op, std::size_t experts) {
    const cpu::LinearShape shape{op.dst.dim, op.src.dim, op.weight.bits, op.weight.group};
    find(weights_, op.weight.name, shape, cpu::packed_linear_bytes(shape), experts, data);
  };
  const auto blocks = [&](const auto& op, int outputs, int inputs, std::size_t experts) {
    const cpu::BlockShape shape{outputs, inputs, static_cast<cpu::BlockType>(op.weight.type)};
    find(blocks_, op.weight.name, shape, cpu::block_panel_bytes(shape), experts, data);
  };
  for (const auto& instruction : blob.instructions) {
    if (const auto* op = std::get_if<delegate::Linear>(&instruction)) packed(*op, 1);
    if (const auto* op = std::get_if<delegate::ExpertLinear>(&instruction)) packed(*op, op->experts);
    if (const auto* op = std::get_if<delegate::BlockLinear>(&instruction)) blocks(*op, op->dst.dim, op->src.dim, 1);
    if (const auto* op = std::get_if<delegate::BlockLookup>(&instruction)) blocks(*op, op->rows, op->dst.dim, 1);
    if (const auto* op = std::get_if<delegate::BlockExpertLinear>(&instruction)) {
      blocks(*op, op->dst.dim, op->src.dim, op->experts);
    }
  }
}

template <class Packed, class Shape>
void MappedWeights::find(ByName<Packed>& known, const std::string& name, const Shape& shape, std::size_t each,
                         std::size_t experts, const executorch::runtime::NamedDataMap* data) {
  require<ProgramError>(each <= std::numeric_limits<std::size_t>::max() / experts, "weight ", name, " of ", experts,
                        " experts is larger than memory can be; export the model again");
  if (const auto at = known.find(name); at != known.end()) {
    const auto& packed = at->second.packed;
    require<ProgramError>(packed.size() == experts && packed[0].shape() == shape, "weight ", name,
                          " is used in two shapes; export the model again");
    return;
  }
  auto found = find_bytes(name, each * experts, data);
  const std::span bytes = span_of(found);
  std::vector<Packed> packed;
  for (std::size_t e = 0; e < experts; ++e) packed.emplace_back(shape, bytes.subspan(e * each, each));
  // Where the file is not in memory yet, the system begins to read it now and not page by page as a forward meets it.
  platform::read_ahead(bytes.data(), bytes.size());
  known.try_emplace(name, Mapped<Packed>{std::move(found), std::move(packed)});
}

}  // namespace agentkv
