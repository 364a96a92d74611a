#include "mlx/graph_blob.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "core/blob_reader.h"
#include "core/message.h"
#include "mlx/graph_ops.h"

namespace agentkv::mlx {
namespace {

constexpr char kOwner[] = "MLX delegate";
constexpr char kMagic[] = "AKVG";
constexpr std::uint32_t kMaxRank = 8;
constexpr std::array kDtypes = {mx::float32, mx::int64,  mx::float16, mx::bfloat16,
                                mx::int32,   mx::uint32, mx::uint8,   mx::bool_};

class Parser {
 public:
  Parser(const void* data, std::size_t size) : in_(kOwner, kMagic, kGraphVersion, data, size) {}

  GraphBlob parse() {
    for (auto n = in_.count(); n > 0; --n) blob_.inputs.push_back(type());
    for (auto n = in_.count(); n > 0; --n) {
      std::string key = in_.text();
      blob_.constants.push_back({std::move(key), type()});
    }
    for (auto n = in_.count(); n > 0; --n) blob_.instructions.push_back(instruction());
    for (auto n = in_.count(); n > 0; --n) {
      const auto value = in_.read<std::int32_t>();
      if (!exists(value)) in_.damaged(error_text("output ", blob_.outputs.size(), " is value ", value));
      blob_.outputs.push_back({value, type()});
    }
    in_.finish();
    return std::move(blob_);
  }

 private:
  ValueType type() {
    ValueType type;
    try {
      type.dtype = dtype_of(in_.read<std::uint32_t>());
    } catch (const std::invalid_argument& error) {
      in_.damaged(error.what());
    }
    const auto rank = in_.count();
    if (rank > kMaxRank) in_.damaged(error_text("a value of ", rank, " dimensions"));
    for (std::uint32_t d = 0; d < rank; ++d) {
      type.sizes.push_back(in_.read<std::int64_t>());
      if (type.sizes[d] < -1 || type.sizes[d] > INT32_MAX) in_.damaged(error_text("a size of ", type.sizes[d]));
    }
    return type;
  }

  template <class Number>
  std::vector<Number> numbers() {
    std::vector<Number> list;
    for (auto n = in_.count(); n > 0; --n) list.push_back(in_.read<Number>());
    return list;
  }

  Instruction instruction() {
    const auto opcode = in_.read<std::uint32_t>();
    Instruction instruction{find_op(opcode), numbers<std::int32_t>(), numbers<std::int64_t>(), numbers<double>()};
    const std::size_t index = blob_.instructions.size();
    if (instruction.op == nullptr) in_.damaged(error_text("instruction ", index, ": unknown opcode ", opcode));
    try {
      check(instruction);
    } catch (const std::invalid_argument& error) {
      in_.damaged(error_text("instruction ", index, " (", instruction.op->name, "): ", error.what()));
    }
    return instruction;
  }

  void check(const Instruction& instruction) const {
    const Op& op = *instruction.op;
    op.args.check(instruction.args.size(), "arguments");
    op.ints.check(instruction.ints.size(), "integers");
    op.floats.check(instruction.floats.size(), "numbers");
    for (std::size_t i = 0; i < instruction.args.size(); ++i) {
      const bool optional = i >= op.args.least;
      if (optional && instruction.args[i] == kAbsent) continue;
      if (!exists(instruction.args[i])) {
        throw std::invalid_argument(error_text("argument ", i, " is value ", instruction.args[i]));
      }
    }
    if (op.check != nullptr) op.check(instruction, blob_);
  }

  bool exists(std::int32_t value) const {
    return value >= 0 && static_cast<std::size_t>(value) < blob_.first_result() + blob_.instructions.size();
  }

  BlobReader in_;
  GraphBlob blob_;
};

}  // namespace

GraphBlob parse_graph(const void* data, std::size_t size) { return Parser(data, size).parse(); }

mx::Dtype dtype_of(std::int64_t code) {
  if (code < 0 || code >= static_cast<std::int64_t>(kDtypes.size())) {
    throw std::invalid_argument(error_text("an unknown dtype ", code));
  }
  return kDtypes[static_cast<std::size_t>(code)];
}

}  // namespace agentkv::mlx
