// The delegate's program as the exporter wrote it (runtime/agentkv_runtime/export/cpu/blob.py): a short list of
// instructions over strided views of inputs, outputs and temporaries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace agentkv::delegate {

inline constexpr std::uint32_t kBlobVersion = 1;

enum class Place : std::uint32_t { Input = 0, Output = 1, Temp = 2 };
enum class DType : std::uint32_t { Float32 = 0, Int64 = 1 };

// A size, offset or stride that may grow with the rows of a call: constant + per_token * n_tokens.
struct Extent {
  std::int64_t constant = 0;
  std::int64_t per_token = 0;

  std::int64_t at(std::int64_t n_tokens) const { return constant + per_token * n_tokens; }
};

// Rows of `heads` blocks of `dim` contiguous floats; offsets and strides in floats.
struct View {
  Place place = Place::Input;
  std::uint32_t index = 0;
  std::int32_t heads = 0;
  std::int32_t dim = 0;
  Extent offset, head_stride, token_stride;
};

// The operations of cpu/row_ops.h, and attention.
struct Copy {
  View src, dst;
};
struct RmsNorm {
  View src, dst;
  std::uint32_t weight = 0;  // constant [dim]
  float eps = 0;
};
struct RopeTable {
  std::uint32_t position = 0;  // input
  View dst;
  std::uint32_t inv_freq = 0;  // constant [F]
  float scaling = 1;
};
struct Rope {
  View src, dst, table;
  bool interleaved = false;
};
struct UpdateAndAttend {
  std::int32_t layer = 0;
  std::uint32_t position = 0;  // input
  float scale = 1;
  std::int32_t window = 0, chunk = 0;  // of cpu's Sight
  float cap = 0;
  std::uint32_t sink_scores = 0, slopes = 0;  // one more than the index of a constant [q.heads]; 0: none
  bool writes = true;                         // or k and v are those that an earlier instruction wrote for the layer
  View q, k, v, dst;
};
// dst = each channel's weights times its last `width` inputs, which the cache keeps as the layer's keys.
struct Convolve {
  std::int32_t layer = 0;
  std::uint32_t position = 0;  // input
  std::int32_t width = 1;
  std::uint32_t weight = 0, bias = 0;  // constant [heads * dim, width]; one more than the index of one [heads * dim]
  View src, dst;
};
// Packed weights (cpu/linear/packed_linear.h), which lie in the program under a name.
struct Weight {
  std::string name;
  std::int32_t bits = 4, group = 32;
};
// dst = W src + bias: rows are quantised to 8 bits, and W is packed integers.
struct Linear {
  View src, dst;
  Weight weight;
  std::uint32_t bias = 0;  // one more than the index of a constant [dst.dim]; 0: none
};
// dst of head i = W[e] src + bias[e], where e is the expert that the row chose i-th. W is packed integers, or floats,
// one expert behind the other; src has one head for all choices, or as many as dst.
struct ExpertLinear {
  View src, dst;
  std::uint32_t experts = 1, chosen = 0;  // their number; input [T, dst.heads]
  Weight weight;                          // of each expert
  std::uint32_t bias = 0;                 // one more than the index of a constant [experts, dst.dim]; 0: none
};
// Weights in blocks (cpu/blocks/block_weight.h), which lie in the program under a name.
struct Blocks {
  std::string name;
  std::int32_t type = 0;  // cpu::BlockType
};
// dst = W src + bias, W in blocks.
struct BlockLinear {
  View src, dst;
  Blocks weight;
  std::uint32_t bias = 0;  // one more than the index of a constant [dst.dim]; 0: none
};
// dst = rows `ids` of W [rows, dst.dim] in blocks, times `factor`.
struct BlockLookup {
  std::uint32_t ids = 0;  // input [T]
  View dst;
  Blocks weight;
  std::int32_t rows = 1;
  float factor = 1;
};
// As ExpertLinear, W in blocks, each expert's from a panel of its own on.
struct BlockExpertLinear {
  View src, dst;
  std::uint32_t experts = 1, chosen = 0;
  Blocks weight;
  std::uint32_t bias = 0;
};
// dst = the sum over heads of weights [T, src.heads] times src.
struct WeightedSum {
  View src, weights, dst;
};
// dst = linear attention (cpu/linear_attention.h).
struct LinearAttend {
  std::int32_t layer = 0;
  std::uint32_t position = 0;  // input
  bool corrects = false;
  bool has_beta = false;   // else any view takes its place
  std::uint32_t skip = 0;  // one more than the index of a constant [v.heads]; 0: none
  View q, k, v, decay, beta, dst;
};
// dst = a selective scan (cpu/selective_scan.h).
struct Scan {
  std::int32_t layer = 0;
  std::uint32_t position = 0;  // input
  std::uint32_t rates = 0;     // constant [b.dim, x.dim]
  View x, decay, b, c, dst;
};
struct Multiply {
  View a, b, dst;
};
struct Add {
  View a, b, dst;
};
// dst = gate(src).
struct Activate {
  View src, dst;
  std::uint32_t gate = 0;  // cpu::Gate
};
// dst = gate(src) * up.
struct Gated {
  View src, up, dst;
  std::uint32_t gate = 0;
};
using Instruction =
    std::variant<Copy, RmsNorm, RopeTable, Rope, UpdateAndAttend, Linear, Add, Activate, Gated, ExpertLinear,
                 WeightedSum, Convolve, Multiply, LinearAttend, Scan, BlockLinear, BlockLookup, BlockExpertLinear>;

struct Value {
  DType dtype = DType::Float32;
  std::vector<Extent> shape;
};

struct Blob {
  std::vector<Value> inputs, outputs;
  std::vector<std::int64_t> temps;  // floats per token
  std::vector<std::vector<float>> constants;
  std::vector<Instruction> instructions;
};

// Throws ProgramError for bytes that are no blob, of another version, damaged, or whose views leave their buffers.
Blob parse_blob(const void* data, std::size_t size);

}  // namespace agentkv::delegate
