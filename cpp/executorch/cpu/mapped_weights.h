// The packed weights of a delegate, where ExecuTorch maps them from the program's file.
#pragma once

#include <executorch/runtime/core/freeable_buffer.h>
#include <executorch/runtime/core/named_data_map.h>

#include <map>
#include <span>
#include <string>
#include <vector>

#include "cpu/blocks/block_weight.h"
#include "cpu/linear/packed_linear.h"
#include "executorch/cpu/delegate_blob.h"

namespace agentkv {

class MappedWeights {
 public:
  // Finds the weights of all linear layers and lookups of the blob, experts among them. `data` may be null where there
  // are none. Throws ProgramError for one that the program does not have or that is of another size, and InvalidTensor
  // for shapes that no weight has.
  MappedWeights(const delegate::Blob& blob, const executorch::runtime::NamedDataMap* data);

  const cpu::PackedLinear& of(const delegate::Linear& op) const { return weights_.at(op.weight.name).packed[0]; }
  const cpu::BlockWeight& of(const delegate::BlockLinear& op) const { return blocks_.at(op.weight.name).packed[0]; }
  const cpu::BlockWeight& of(const delegate::BlockLookup& op) const { return blocks_.at(op.weight.name).packed[0]; }
  std::span<const cpu::PackedLinear> of(const delegate::ExpertLinear& op) const {
    return weights_.at(op.weight.name).packed;
  }
  std::span<const cpu::BlockWeight> of(const delegate::BlockExpertLinear& op) const {
    return blocks_.at(op.weight.name).packed;
  }

 private:
  template <class Packed>
  struct Mapped {
    executorch::runtime::FreeableBuffer bytes;
    std::vector<Packed> packed;  // of each expert
  };
  template <class Packed>
  using ByName = std::map<std::string, Mapped<Packed>>;

  // The weights of `experts` of one shape, each packed into `each` bytes.
  template <class Packed, class Shape>
  static void find(ByName<Packed>& known, const std::string& name, const Shape& shape, std::size_t each,
                   std::size_t experts, const executorch::runtime::NamedDataMap* data);

  ByName<cpu::PackedLinear> weights_;
  ByName<cpu::BlockWeight> blocks_;
};

}  // namespace agentkv
