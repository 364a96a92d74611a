// The operations of the graph: for each its signature, what of it can be checked before it runs, and how MLX does it.
#pragma once

#include <mlx/array.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/message.h"
#include "mlx/graph_blob.h"

namespace agentkv::mlx {

class KvCache;

// What a caller feeds: row-major host memory that outlives the run.
struct Input {
  const void* data = nullptr;
  mx::Dtype dtype = mx::float32;
  mx::Shape shape;
};

// The values of one run of a graph.
struct Frame {
  std::span<const Input> inputs;
  KvCache& cache;
  std::vector<std::optional<mx::array>> values;
  std::map<std::int32_t, mx::array> derived;  // see Call::derived

  // Contents of an int64 input; empty for any other value.
  std::span<const std::int64_t> host_ints(std::int32_t value) const;
};

// One instruction over a frame: what an operation sees.
struct Call {
  const Instruction& instruction;
  Frame& frame;

  const mx::array& arg(std::size_t i) const { return *frame.values[static_cast<std::size_t>(instruction.args[i])]; }
  std::optional<mx::array> optional(std::size_t i) const {
    return instruction.has(i) ? std::optional(arg(i)) : std::nullopt;
  }
  std::int64_t integer(std::size_t i) const { return instruction.ints[i]; }
  float number(std::size_t i) const { return static_cast<float>(instruction.floats[i]); }

  // make(arg(i)), computed once per run for every call with the same argument: rope of each layer needs the same.
  const mx::array& derived(std::size_t i, mx::array (*make)(const mx::array&)) const;
};

// How many entries a list may have.
struct Count {
  static constexpr std::size_t kAny = std::numeric_limits<std::size_t>::max();

  std::size_t least = 0, most = 0;

  constexpr Count() = default;
  constexpr Count(std::size_t exactly) : least(exactly), most(exactly) {}
  constexpr Count(std::size_t from, std::size_t to) : least(from), most(to) {}
  void check(std::size_t n, const char* what) const;
};

// What an operation refuses it throws as std::invalid_argument, as MLX does; Graph adds where it happened.
struct Op {
  std::uint32_t opcode = 0;
  const char* name = "";
  Count args, ints, floats;                                       // arguments from args.least on may be absent
  mx::array (*run)(const Call&) = nullptr;                        // lazy
  void (*check)(const Instruction&, const GraphBlob&) = nullptr;  // of what does not depend on the values
};

// Null for an opcode that does not exist.
const Op* find_op(std::uint32_t opcode);

// The groups that make up the table.
std::span<const Op> product_ops();
std::span<const Op> layer_ops();
std::span<const Op> mixer_ops();
std::span<const Op> choice_ops();
std::span<const Op> shape_ops();
std::span<const Op> elementwise_ops();

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw std::invalid_argument(error_text(parts...));
}
// int32 of an int64 out of the blob; throws std::invalid_argument.
int narrow(std::int64_t value);
// `axis` counted from the front; throws std::invalid_argument when `x` has no such dimension.
int axis_of(const mx::array& x, std::int64_t axis);
// Throws std::invalid_argument unless the value is an input that positions can be.
void check_position(std::int32_t value, const GraphBlob& blob);
// What layers ask of their arguments, as std::invalid_argument; MLX would promote or broadcast what does not fit.
void check_vector(const std::optional<mx::array>& x, int size, const char* name);
void check_floats(const mx::array& x);
// Throws std::invalid_argument unless argument `i` holds indices least <= index < bound: MLX would read foreign memory.
void check_indices(const Call& call, std::size_t i, std::int64_t bound, std::int64_t least = 0);
// Indices as int32, lazily brought within [0, bound): what routers compute in every layer is not worth a wait. Throws
// std::invalid_argument for what is no integer.
mx::array within(const mx::array& indices, int bound);
// f over float32, back in x's dtype: for what loses too much in half precision.
mx::array in_float32(const mx::array& x, mx::array (*f)(const mx::array&));

}  // namespace agentkv::mlx
