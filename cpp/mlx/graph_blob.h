// The program that the MLX delegate runs, as the exporter packed it (runtime/agentkv_runtime/export/mlx/graph.py):
// inputs, constants by name, and a list of instructions, each of which makes one value.
#pragma once

#include <mlx/dtype.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace agentkv::mlx {

namespace mx = ::mlx::core;

inline constexpr std::uint32_t kGraphVersion = 1;
inline constexpr std::int32_t kAbsent = -1;  // an optional argument that is not there

struct ValueType {
  mx::Dtype dtype = mx::float32;
  std::vector<std::int64_t> sizes;  // -1: any
};

struct NamedConstant {
  std::string key;
  ValueType type;
};

struct Op;  // graph_ops.h

struct Instruction {
  const Op* op = nullptr;
  std::vector<std::int32_t> args;  // ids of earlier values, or kAbsent
  std::vector<std::int64_t> ints;
  std::vector<double> floats;

  bool has(std::size_t arg) const { return arg < args.size() && args[arg] != kAbsent; }
  // Of a list whose end may be left out.
  std::int64_t integer_or_0(std::size_t i) const { return i < ints.size() ? ints[i] : 0; }
};

struct GraphOutput {
  std::int32_t value = 0;
  ValueType type;
};

// Values are numbered: inputs, then constants, then what the instructions make.
struct GraphBlob {
  std::vector<ValueType> inputs;
  std::vector<NamedConstant> constants;
  std::vector<Instruction> instructions;
  std::vector<GraphOutput> outputs;

  std::size_t first_result() const { return inputs.size() + constants.size(); }
};

// Throws ProgramError for bytes that are no graph, of another version, damaged, or with an instruction that no values
// could satisfy.
GraphBlob parse_graph(const void* data, std::size_t size);

// The dtype of a number in the blob; throws std::invalid_argument for a number that is none.
mx::Dtype dtype_of(std::int64_t code);

}  // namespace agentkv::mlx
