#include "mlx/graph.h"

#include <mlx/allocator.h>
#include <mlx/utils.h>

#include <cstring>
#include <exception>
#include <sstream>
#include <utility>

#include "core/errors.h"

namespace agentkv::mlx {
namespace {

std::string type_text(mx::Dtype dtype, const auto& sizes) {
  std::ostringstream out;
  out << dtype << " [";
  const char* comma = "";
  for (const auto size : sizes) {
    out << comma;
    if (size < 0) {
      out << '?';
    } else {
      out << size;
    }
    comma = ", ";
  }
  out << ']';
  return out.str();
}

bool fits(const ValueType& type, mx::Dtype dtype, const mx::Shape& shape) {
  if (dtype != type.dtype || shape.size() != type.sizes.size()) return false;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (type.sizes[d] >= 0 && shape[d] != type.sizes[d]) return false;
  }
  return true;
}

mx::array copied(const Input& input) {
  std::size_t bytes = input.dtype.size();
  for (const auto size : input.shape) bytes *= static_cast<std::size_t>(size);
  auto memory = mx::allocator::malloc(bytes);
  if (bytes > 0) std::memcpy(memory.buffer().raw_ptr(), input.data, bytes);
  return mx::array(std::move(memory), input.shape, input.dtype);
}

}  // namespace

Graph::Graph(const void* data, std::size_t size, const ConstantLoader& load) : blob_(parse_graph(data, size)) {
  for (const NamedConstant& constant : blob_.constants) {
    mx::Shape shape;
    for (const std::int64_t n : constant.type.sizes) {
      if (n < 0) throw ProgramError("MLX delegate: constant " + constant.key + " has no definite shape");
      shape.push_back(static_cast<int>(n));
    }
    constants_.push_back(load(constant.key, constant.type.dtype, shape));
    if (!fits(constant.type, constants_.back().dtype(), constants_.back().shape())) {
      throw ProgramError("MLX delegate: constant " + constant.key + " is not as the program says");
    }
  }
  plan_drops();
}

void Graph::plan_drops() {
  const std::size_t first = blob_.first_result(), n = blob_.instructions.size();
  std::vector<std::size_t> last(first + n, 0);
  std::vector<bool> kept(first + n, false);
  for (std::size_t j = 0; j < n; ++j) {
    last[first + j] = j;
    for (const std::int32_t id : blob_.instructions[j].args) {
      if (id != kAbsent) last[static_cast<std::size_t>(id)] = j;
    }
  }
  for (const GraphOutput& output : blob_.outputs) kept[static_cast<std::size_t>(output.value)] = true;
  drops_.resize(n);
  for (std::size_t id = 0; id < first + n && n > 0; ++id) {
    if (!kept[id]) drops_[last[id]].push_back(id);
  }
}

std::vector<mx::array> Graph::run(std::span<const Input> inputs, KvCache& cache) const {
  check_inputs(inputs);
  Frame frame{inputs, cache, {}, {}};
  frame.values.reserve(blob_.first_result() + blob_.instructions.size());
  for (const Input& input : inputs) frame.values.emplace_back(copied(input));
  for (const mx::array& constant : constants_) frame.values.emplace_back(constant);
  for (std::size_t j = 0; j < blob_.instructions.size(); ++j) {
    frame.values.emplace_back(run_instruction(j, frame));
    for (const std::size_t id : drops_[j]) frame.values[id].reset();
  }
  return take_outputs(frame);
}

void Graph::check_inputs(std::span<const Input> inputs) const {
  if (inputs.size() != blob_.inputs.size()) {
    throw InvalidTensor(error_text("MLX delegate: ", inputs.size(), " inputs, not ", blob_.inputs.size()));
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const ValueType& type = blob_.inputs[i];
    if (fits(type, inputs[i].dtype, inputs[i].shape)) continue;
    throw InvalidTensor(error_text("MLX delegate: input ", i, " is ", type_text(inputs[i].dtype, inputs[i].shape),
                                   ", not ", type_text(type.dtype, type.sizes)));
  }
}

mx::array Graph::run_instruction(std::size_t index, Frame& frame) const {
  const Instruction& instruction = blob_.instructions[index];
  try {
    return instruction.op->run({instruction, frame});
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    std::string over;
    for (const std::int32_t id : instruction.args) {
      if (id == kAbsent) continue;
      const mx::array& x = *frame.values[static_cast<std::size_t>(id)];
      over += (over.empty() ? " of " : ", ") + type_text(x.dtype(), x.shape());
    }
    throw InvalidTensor(
        error_text("MLX delegate: instruction ", index, " (", instruction.op->name, over, "): ", error.what()));
  }
}

std::vector<mx::array> Graph::take_outputs(const Frame& frame) const {
  std::vector<mx::array> outputs;
  for (const auto& [value, type] : blob_.outputs) {
    const mx::array& x = *frame.values[static_cast<std::size_t>(value)];
    if (!fits(type, x.dtype(), x.shape())) {
      throw InvalidTensor(error_text("MLX delegate: output ", outputs.size(), " is ", type_text(x.dtype(), x.shape()),
                                     ", not ", type_text(type.dtype, type.sizes)));
    }
    outputs.push_back(x);
  }
  return outputs;
}

}  // namespace agentkv::mlx
