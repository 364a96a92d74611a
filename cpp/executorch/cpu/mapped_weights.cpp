#include "executorch/cpu/mapped_weights.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
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

}  // namespace

MappedWeights::MappedWeights(const delegate::Blob& blob, const executorch::runtime::NamedDataMap* data) {
  for (const auto& instruction : blob.instructions) {
    const auto* op = std::get_if<delegate::Linear>(&instruction);
    if (op == nullptr) continue;
    const cpu::LinearShape shape{op->dst.dim, op->src.dim, op->bits, op->group};
    const std::size_t wanted = cpu::packed_linear_bytes(shape);
    if (const auto known = weights_.find(op->weight); known != weights_.end()) {
      const auto& has = known->second.packed.shape();
      require<ProgramError>(has.outputs == shape.outputs && has.inputs == shape.inputs && has.bits == shape.bits &&
                                has.group == shape.group,
                            "weight ", op->weight, " is used in two shapes; export the model again");
      continue;
    }
    require<ProgramError>(data != nullptr, "the program has no weights; export the model again");
    auto found = data->get_data(op->weight);
    require<ProgramError>(found.ok(), "the program has no weight ", op->weight, "; export the model again");
    require<ProgramError>(found->size() == wanted, "weight ", op->weight, " has ", found->size(), " bytes, not ",
                          wanted, "; export the model again");
    const std::span bytes(static_cast<const std::byte*>(found->data()), found->size());
    cpu::PackedLinear packed(shape, bytes);
    read_ahead(bytes.data(), bytes.size());
    weights_.try_emplace(op->weight, Weight{std::move(found.get()), packed});
  }
}

}  // namespace agentkv
