#include "executorch/cpu/mapped_weights.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {
namespace {

// Where the file is not in memory yet, the system begins to read it now and not page by page as a forward meets it.
void read_ahead(const void* at, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(at) / page * page;
  posix_madvise(reinterpret_cast<void*>(begin), reinterpret_cast<std::uintptr_t>(at) + bytes - begin,
                POSIX_MADV_WILLNEED);  // a hint: what becomes of it does not matter
}

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
  const auto shape = [](const auto& op) {
    return cpu::LinearShape{op.dst.dim, op.src.dim, op.weight.bits, op.weight.group};
  };
  for (const auto& instruction : blob.instructions) {
    if (const auto* op = std::get_if<delegate::Linear>(&instruction)) find(op->weight, shape(*op), 1, data);
    if (const auto* op = std::get_if<delegate::BlockLinear>(&instruction)) {
      find(op->weight, {op->dst.dim, op->src.dim, static_cast<cpu::BlockType>(op->weight.type)}, data);
    }
    if (const auto* op = std::get_if<delegate::BlockLookup>(&instruction)) {
      find(op->weight, {op->rows, op->dst.dim, static_cast<cpu::BlockType>(op->weight.type)}, data);
    }
    if (const auto* op = std::get_if<delegate::ExpertLinear>(&instruction)) {
      find(op->weight, shape(*op), op->experts, data);
    }
  }
}

void MappedWeights::find(const delegate::Weight& weight, const cpu::LinearShape& shape, std::size_t experts,
                         const executorch::runtime::NamedDataMap* data) {
  const std::size_t each = cpu::packed_linear_bytes(shape);
  require<ProgramError>(each <= std::numeric_limits<std::size_t>::max() / experts, "weight ", weight.name, " of ",
                        experts, " experts is larger than memory can be; export the model again");
  const std::size_t wanted = each * experts;
  if (const auto known = weights_.find(weight.name); known != weights_.end()) {
    const auto& packed = known->second.packed;
    require<ProgramError>(packed.size() == experts && packed[0].shape() == shape, "weight ", weight.name,
                          " is used in two shapes; export the model again");
    return;
  }
  auto found = find_bytes(weight.name, wanted, data);
  const std::span bytes = span_of(found);
  std::vector<cpu::PackedLinear> packed;
  for (std::size_t e = 0; e < experts; ++e) packed.emplace_back(shape, bytes.subspan(e * each, each));
  read_ahead(bytes.data(), bytes.size());
  weights_.try_emplace(weight.name, Mapped{std::move(found), std::move(packed)});
}

void MappedWeights::find(const delegate::Blocks& blocks, const cpu::BlockShape& shape,
                         const executorch::runtime::NamedDataMap* data) {
  const std::size_t wanted = cpu::block_panel_bytes(shape);
  if (const auto known = blocks_.find(blocks.name); known != blocks_.end()) {
    require<ProgramError>(known->second.weight.shape() == shape, "weight ", blocks.name,
                          " is used in two shapes; export the model again");
    return;
  }
  auto found = find_bytes(blocks.name, wanted, data);
  const std::span bytes = span_of(found);
  read_ahead(bytes.data(), bytes.size());
  blocks_.try_emplace(blocks.name, MappedBlocks{std::move(found), cpu::BlockWeight(shape, bytes)});
}

}  // namespace agentkv
