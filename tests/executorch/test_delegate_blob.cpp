// Blobs that parse, and every way in which one may not: each is a ProgramError before anything could run.
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/errors.h"
#include "cpp/check.h"
#include "executorch/cpu/delegate_blob.h"

namespace {

using agentkv::ProgramError;
using namespace agentkv::delegate;
using Bytes = std::vector<std::uint8_t>;

struct Writer {
  Bytes bytes;

  template <typename T>
  Writer& put(T value) {
    const auto* at = reinterpret_cast<const std::uint8_t*>(&value);
    bytes.insert(bytes.end(), at, at + sizeof(T));
    return *this;
  }
  Writer& u32(std::uint32_t value) { return put(value); }
  Writer& affine(std::int64_t constant, std::int64_t per_token) { return put(constant).put(per_token); }
  Writer& view(std::uint32_t place, std::uint32_t index, std::int32_t heads, std::int32_t dim, std::int64_t offset,
               std::int64_t head_stride, std::int64_t token_stride) {
    u32(place).u32(index).put(heads).put(dim);
    return affine(offset, 0).affine(head_stride, 0).affine(token_stride, 0);
  }
};

std::uint32_t crc32(const Bytes& bytes) {
  std::uint32_t crc = ~0u;
  for (const auto byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) ? 0xEDB88320u ^ (crc >> 1) : crc >> 1;
  }
  return ~crc;
}

Bytes with_header(const Bytes& payload, std::uint32_t version = kBlobVersion) {
  Writer out;
  for (const char c : {'A', 'K', 'V', 'D'}) out.put(c);
  out.u32(version).u32(static_cast<std::uint32_t>(payload.size())).u32(crc32(payload));
  out.bytes.insert(out.bytes.end(), payload.begin(), payload.end());
  return out.bytes;
}

// One input [T, 32] and positions [T] in, [T, 32] out, a norm over 2 heads of 16 into a temporary, then a copy.
struct Example {
  std::int32_t heads = 2, dim = 16;
  std::uint32_t place = 2, dst = 0, weight = 0, opcode = 2, n_weights = 16, dtype = 0, copy_to = 1, count = 2;
  std::int64_t offset = 0, head_stride = 16, token_stride = 32, temp = 32, grows = 0;

  Bytes payload() const {
    Writer out;
    out.u32(2);
    out.u32(dtype).u32(2).affine(0, 1).affine(32, grows);
    out.u32(1).u32(1).affine(0, 1);
    out.u32(1).u32(0).u32(2).affine(0, 1).affine(32, 0);
    out.u32(1).put(temp);
    out.u32(1).u32(n_weights);
    for (std::uint32_t i = 0; i < n_weights; ++i) out.put(1.5f);
    out.u32(count);
    out.u32(opcode).view(0, 0, heads, dim, 0, 16, 32).view(place, dst, heads, dim, offset, head_stride, token_stride);
    out.u32(weight).put(1e-6);
    out.u32(1).view(2, 0, 2, 16, 0, 16, 32).view(copy_to, 0, 2, 16, 0, 16, 32);
    return out.bytes;
  }
};

// One input [T, 32], [T, 16] out: a linear layer into a temporary of 32, its first half gated by its second one, a sum
// with itself, and a gate alone.
struct Layers {
  std::string weight = "w";
  std::int32_t src_heads = 1, bits = 4, src_place = 0, up_dim = 16;
  std::uint32_t bias = 1, gate = 1, alone = 0, n_bias = 32;

  Bytes payload() const {
    Writer out;
    out.u32(1);
    out.u32(0).u32(2).affine(0, 1).affine(32, 0);
    out.u32(1).u32(0).u32(2).affine(0, 1).affine(16, 0);
    out.u32(1).put(std::int64_t{32});
    out.u32(1).u32(n_bias);
    for (std::uint32_t i = 0; i < n_bias; ++i) out.put(0.5f);
    out.u32(4);
    out.u32(6).view(static_cast<std::uint32_t>(src_place), 0, src_heads, 32 / src_heads, 0, 32 / src_heads, 32);
    out.view(2, 0, 1, 32, 0, 0, 32);
    out.u32(static_cast<std::uint32_t>(weight.size()));
    for (const char c : weight) out.put(c);
    out.put(bits).u32(32).u32(bias);
    out.u32(9).view(2, 0, 1, 16, 0, 0, 32).view(2, 0, 1, up_dim, 16, 0, 32).view(1, 0, 1, 16, 0, 0, 16).u32(gate);
    out.u32(7).view(1, 0, 1, 16, 0, 0, 16).view(1, 0, 1, 16, 0, 0, 16).view(1, 0, 1, 16, 0, 0, 16);
    out.u32(8).view(1, 0, 1, 16, 0, 0, 16).view(1, 0, 1, 16, 0, 0, 16).u32(alone);
    return out.bytes;
  }
};

// One input [T, 32], a choice [T, 2] of 3 experts and weights [T, 2] in, [T, 8] out: experts of [8, 32] into a
// temporary of two heads, and their weighted sum.
struct Experts {
  std::uint32_t experts = 3, chosen = 1, bias = 1, n_bias = 24, dst_place = 2;
  std::int32_t src_heads = 1, weights_dim = 2, sum_dim = 8;
  bool blocks = false;  // or packed integers
  std::int64_t choices = 2, head_stride = 8, token_stride = 16;

  Bytes payload() const {
    Writer out;
    out.u32(3);
    out.u32(0).u32(2).affine(0, 1).affine(32, 0);
    out.u32(1).u32(2).affine(0, 1).affine(choices, 0);
    out.u32(0).u32(2).affine(0, 1).affine(2, 0);
    out.u32(1).u32(0).u32(2).affine(0, 1).affine(8, 0);
    out.u32(1).put(std::int64_t{32});
    out.u32(1).u32(n_bias);
    for (std::uint32_t i = 0; i < n_bias; ++i) out.put(0.5f);
    out.u32(2);
    out.u32(blocks ? 19 : 11).view(0, 0, src_heads, 32 / src_heads, 0, 32 / src_heads, 32);
    out.view(dst_place, 0, 2, 8, 0, head_stride, token_stride);
    out.u32(experts).u32(chosen).u32(1).put('w');
    blocks ? out.u32(2) : out.u32(4).u32(32);
    out.u32(bias);
    out.u32(12).view(2, 0, 2, 8, 0, 8, 16).view(0, 2, 1, weights_dim, 0, 0, 2).view(1, 0, 1, sum_dim, 0, 0, 8);
    return out.bytes;
  }
};

// Ids [T] in, [T, 16] out: rows of a table of 9 in blocks, and a linear layer over them, also in blocks.
struct BlockLayers {
  std::uint32_t ids = 0, bias = 1, n_bias = 16, src_place = 2;
  std::int32_t rows = 9, type = 2, dst_heads = 1, src_heads = 1;
  double factor = 2.0;

  Bytes payload() const {
    Writer out;
    out.u32(1);
    out.u32(1).u32(1).affine(0, 1);
    out.u32(1).u32(0).u32(2).affine(0, 1).affine(16, 0);
    out.u32(1).put(std::int64_t{32});
    out.u32(1).u32(n_bias);
    for (std::uint32_t i = 0; i < n_bias; ++i) out.put(0.5f);
    out.u32(2);
    out.u32(18).u32(ids).view(2, 0, dst_heads, 32 / dst_heads, 0, 32 / dst_heads, 32);
    out.u32(1).put('t').put(type).put(rows).put(factor);
    out.u32(17).view(src_place, 0, src_heads, 32 / src_heads, 0, 32 / src_heads, src_place == 2 ? 32 : 16);
    out.view(1, 0, 1, 16, 0, 0, 16).u32(1).put('w').put(type).u32(bias);
    return out.bytes;
  }
};

// One input [T, 32] and positions [T], [T, 32] out: a convolution of 2 heads of 16, the same times itself, and linear
// attention of 2 heads, keys of 4 and values of 8, whose decay and beta are the first numbers of a row.
struct Mixers {
  std::uint32_t weight = 0, bias = 2, n_weights = 96, has_beta = 1, skip = 4, rates = 2;
  std::int32_t width = 3, layer = 0, dst_dim = 16, k_heads = 1, decay_heads = 1, decay_dim = 2, beta_dim = 2;
  std::int32_t scan_layer = 0, scan_heads = 1, states = 3;
  std::uint32_t out_place = 1;

  Bytes payload() const {
    Writer out;
    out.u32(2);
    out.u32(0).u32(2).affine(0, 1).affine(32, 0);
    out.u32(1).u32(1).affine(0, 1);
    out.u32(1).u32(0).u32(2).affine(0, 1).affine(32, 0);
    out.u32(0);
    out.u32(4);
    for (const std::uint32_t size : {n_weights, 32u, 24u, 2u}) {
      out.u32(size);
      for (std::uint32_t i = 0; i < size; ++i) out.put(0.5f);
    }
    out.u32(4);
    out.u32(13).put(layer).u32(1).put(width).u32(weight).u32(bias);
    out.view(0, 0, 2, 16, 0, 16, 32).view(1, 0, 2, dst_dim, 0, 16, 32);
    out.u32(14).view(0, 0, 1, 32, 0, 0, 32).view(0, 0, 1, 32, 0, 0, 32).view(1, 0, 1, 32, 0, 0, 32);
    out.u32(15).u32(3).u32(1).u32(1).u32(has_beta).u32(skip);
    out.view(0, 0, k_heads, 4, 0, 4, 32).view(0, 0, k_heads, 4, 8, 4, 32).view(0, 0, 2, 8, 16, 8, 32);
    out.view(0, 0, decay_heads, decay_dim, 0, 4, 32).view(0, 0, 1, beta_dim, 2, 0, 32);
    out.view(out_place, 0, 2, 8, 0, 8, 32);
    out.u32(16).put(scan_layer).u32(1).u32(rates).view(0, 0, scan_heads, 8, 0, 8, 32).view(0, 0, 1, 8, 8, 0, 32);
    out.view(0, 0, 1, states, 16, 0, 32).view(0, 0, 1, 3, 20, 0, 32).view(1, 0, 1, 8, 0, 0, 32);
    return out.bytes;
  }
};

// One input [T, 32] and positions [T], [T, 32] out: attention of 2 heads of 16 over one of K and V, as opcode 5 says
// it, or as 10 does.
struct Attention {
  std::uint32_t opcode = 10, sink_scores = 1, slopes = 0, writes = 1, n_scores = 2;
  std::int32_t window = 8, chunk = 4, k_dim = 16, v_dim = 16;
  double cap = 2.5;

  Bytes payload() const {
    Writer out;
    out.u32(2);
    out.u32(0).u32(2).affine(0, 1).affine(32, 0);
    out.u32(1).u32(1).affine(0, 1);
    out.u32(1).u32(0).u32(2).affine(0, 1).affine(32, 0);
    out.u32(0);
    out.u32(1).u32(n_scores);
    for (std::uint32_t i = 0; i < n_scores; ++i) out.put(0.5f);
    out.u32(1);
    out.u32(opcode).u32(3).u32(1).put(0.25).put(window);
    if (opcode == 10) out.put(chunk).put(cap).u32(sink_scores).u32(slopes).u32(writes);
    out.view(0, 0, 2, 16, 0, 16, 32).view(0, 0, 1, k_dim, 0, 0, 32).view(0, 0, 1, v_dim, 0, 0, 32);
    out.view(1, 0, 2, 16, 0, 16, 32);
    return out.bytes;
  }
};

Blob parse(const Bytes& bytes) { return parse_blob(bytes.data(), bytes.size()); }

void refused(const Bytes& bytes, const std::string& why) {
  try {
    parse(bytes);
  } catch (const ProgramError& error) {
    const std::string text = error.what();
    if (text.find(why) == std::string::npos) agentkv::testing::fail(__FILE__, __LINE__, text + " lacks: " + why);
    return;
  }
  agentkv::testing::fail(__FILE__, __LINE__, "parsed, but should say: " + why);
}

void refused(const std::function<void(Example&)>& change, const std::string& why) {
  Example example;
  change(example);
  refused(with_header(example.payload()), why);
}

void a_blob_parses() {
  const Blob blob = parse(with_header(Example{}.payload()));
  CHECK_EQ(blob.inputs.size(), 2u);
  CHECK_EQ(blob.outputs.size(), 1u);
  CHECK_EQ(blob.temps.at(0), 32);
  CHECK_EQ(blob.constants.at(0).size(), 16u);
  CHECK_EQ(blob.constants[0][15], 1.5f);
  CHECK_EQ(blob.instructions.size(), 2u);
  const auto& norm = std::get<RmsNorm>(blob.instructions[0]);
  CHECK_EQ(norm.eps, 1e-6f);
  CHECK_EQ(norm.src.heads, 2);
  CHECK_EQ(norm.dst.token_stride.at(7), 32);
  CHECK(std::holds_alternative<Copy>(blob.instructions[1]));
}

void every_cut_and_every_flipped_bit_is_refused() {
  const Bytes whole = with_header(Example{}.payload());
  for (std::size_t n = 0; n < whole.size(); ++n) {
    refused(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n)), "attention delegate");
  }
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes damaged = whole;
      damaged[i] ^= static_cast<std::uint8_t>(1 << bit);
      refused(damaged, "attention delegate");
    }
  }
}

void other_versions_name_both() {
  refused(with_header(Example{}.payload(), 2), "blob version 2, this build reads version 1");
}

void what_would_leave_its_buffer_is_refused() {
  refused([](Example& e) { e.offset = 1; }, "beyond its buffer");
  refused([](Example& e) { e.head_stride = 17; }, "beyond its buffer");
  refused([](Example& e) { e.token_stride = 33; }, "beyond its buffer");
  refused([](Example& e) { e.temp = 31; }, "beyond its buffer");
  refused([](Example& e) { e.head_stride = std::int64_t{1} << 32; }, "beyond its buffer");
  refused([](Example& e) { e.heads = 1 << 20, e.head_stride = std::int64_t{1} << 32; }, "beyond its buffer");
  refused([](Example& e) { e.grows = 1; }, "two dimensions grow");
  refused([](Example& e) { e.offset = -1; }, "negative");
  refused([](Example& e) { e.token_stride = -32; }, "negative");
  refused([](Example& e) { e.heads = 0; }, "empty or huge view");
  refused([](Example& e) { e.dst = 1; }, "temporary does not exist");
  refused([](Example& e) { e.place = 7; }, "a view of nothing");
  refused([](Example& e) { e.temp = 0; }, "a temporary of 0 floats");
}

void what_does_not_fit_together_is_refused() {
  refused([](Example& e) { e.copy_to = 0; }, "an input is written");
  refused([](Example& e) { e.weight = 1; }, "constant 1 does not exist");
  refused([](Example& e) { e.n_weights = 15; }, "a norm weight of another width");
  refused([](Example& e) { e.opcode = 99; }, "instruction 99, which this build does not have");
  refused([](Example& e) { e.dtype = 5; }, "an unknown dtype");
  refused([](Example& e) { e.dtype = 1; }, "a view of integers");
  refused([](Example& e) { e.count = 1; }, "goes on after its end");
  refused([](Example& e) { e.count = 0x7FFFFFFF; }, "a list of 2147483647 entries");
}

void refused_layers(const std::function<void(Layers&)>& change, const std::string& why) {
  Layers layers;
  change(layers);
  refused(with_header(layers.payload()), why);
}

void refused_experts(const std::function<void(Experts&)>& change, const std::string& why) {
  for (const bool blocks : {false, true}) {
    Experts experts{.blocks = blocks};
    change(experts);
    refused(with_header(experts.payload()), why);
  }
}

void refused_mixers(const std::function<void(Mixers&)>& change, const std::string& why) {
  Mixers mixers;
  change(mixers);
  refused(with_header(mixers.payload()), why);
}

void refused_attention(const std::function<void(Attention&)>& change, const std::string& why) {
  Attention attention;
  change(attention);
  refused(with_header(attention.payload()), why);
}

void attention_parses_as_older_programs_say_it_and_as_newer_ones_do() {
  const Blob blob = parse(with_header(Attention{}.payload()));
  const auto& op = std::get<UpdateAndAttend>(blob.instructions.at(0));
  CHECK_EQ(op.layer, 3);
  CHECK_EQ(op.window, 8);
  CHECK_EQ(op.chunk, 4);
  CHECK_EQ(op.cap, 2.5f);
  CHECK_EQ(op.sink_scores, 1u);
  CHECK_EQ(op.slopes, 0u);
  CHECK(op.writes);
  const Blob old = parse(with_header(Attention{.opcode = 5}.payload()));
  const auto& plain = std::get<UpdateAndAttend>(old.instructions.at(0));
  CHECK_EQ(plain.window, 8);
  CHECK_EQ(plain.chunk, 0);
  CHECK_EQ(plain.cap, 0.0f);
  CHECK_EQ(plain.sink_scores, 0u);
  CHECK(plain.writes);
}

void attention_that_cannot_be_is_refused() {
  refused_attention([](Attention& a) { a.window = -1; }, "a negative layer, window or chunk");
  refused_attention([](Attention& a) { a.chunk = -1; }, "a negative layer, window or chunk");
  refused_attention([](Attention& a) { a.cap = -1; }, "no positive number");
  refused_attention([](Attention& a) { a.cap = std::numeric_limits<double>::quiet_NaN(); }, "no positive number");
  refused_attention([](Attention& a) { a.cap = std::numeric_limits<double>::infinity(); }, "no positive number");
  refused_attention([](Attention& a) { a.sink_scores = 2; }, "constant 1 does not exist");
  refused_attention([](Attention& a) { a.slopes = 0xFFFFFFFF; }, "does not exist");
  refused_attention([](Attention& a) { a.n_scores = 3; }, "another number of heads");
  refused_attention([](Attention& a) { a.k_dim = 8; }, "do not match");
  refused_attention([](Attention& a) { a.v_dim = 8; }, "do not match");
}

void linear_layers_and_gates_parse() {
  const Blob blob = parse(with_header(Layers{}.payload()));
  const auto& linear = std::get<Linear>(blob.instructions.at(0));
  CHECK(linear.weight.name == "w");
  CHECK_EQ(linear.weight.bits, 4);
  CHECK_EQ(linear.weight.group, 32);
  CHECK_EQ(linear.bias, 1u);
  CHECK_EQ(linear.dst.dim, 32);
  const auto& gated = std::get<Gated>(blob.instructions.at(1));
  CHECK_EQ(gated.up.offset.at(3), 16);
  CHECK_EQ(gated.gate, 1u);
  CHECK(std::holds_alternative<Add>(blob.instructions.at(2)));
  CHECK_EQ(std::get<Activate>(blob.instructions.at(3)).gate, 0u);
}

void linear_layers_and_gates_that_cannot_be() {
  refused_layers([](Layers& l) { l.src_heads = 2; }, "a linear layer over heads");
  refused_layers([](Layers& l) { l.src_place = 2; }, "a linear layer in place");
  refused_layers([](Layers& l) { l.bits = 32; }, "a linear layer of floats");
  refused_layers([](Layers& l) { l.n_bias = 31; }, "a bias of another width");
  refused_layers([](Layers& l) { l.bias = 2; }, "constant 1 does not exist");
  refused_layers([](Layers& l) { l.up_dim = 15; }, "differ in shape");
  refused_layers([](Layers& l) { l.gate = 4; }, "an unknown gate");
  refused_layers([](Layers& l) { l.alone = 4; }, "an unknown gate");
}

template <class Op>
Op parsed_experts(const Experts& given) {
  const Blob blob = parse(with_header(given.payload()));
  const auto& op = std::get<Op>(blob.instructions.at(0));
  CHECK_EQ(op.experts, 3u);
  CHECK_EQ(op.chosen, 1u);
  CHECK(op.weight.name == "w");
  CHECK_EQ(op.dst.heads, 2);
  CHECK_EQ(op.bias, 1u);
  CHECK_EQ(std::get<WeightedSum>(blob.instructions.at(1)).weights.dim, 2);
  return op;
}

void experts_parse() {
  parsed_experts<ExpertLinear>({});
  CHECK_EQ(parsed_experts<BlockExpertLinear>({.blocks = true}).weight.type, 2);
}

void experts_that_cannot_be_are_refused() {
  refused_experts([](Experts& e) { e.experts = 0; }, "0 experts");
  refused_experts([](Experts& e) { e.experts = 0x7FFFFFFF; }, "2147483647 experts");
  refused_experts([](Experts& e) { e.experts = 4; }, "a bias of another width");
  refused_experts([](Experts& e) { e.bias = 2; }, "constant 1 does not exist");
  refused_experts([](Experts& e) { e.chosen = 0; }, "the choice of experts is no input");
  refused_experts([](Experts& e) { e.chosen = 9; }, "the choice of experts is no input");
  refused_experts([](Experts& e) { e.choices = 1; }, "has not 2 for each row");
  refused_experts([](Experts& e) { e.choices = 3; }, "has not 2 for each row");
  refused_experts([](Experts& e) { e.src_heads = 4; }, "experts over other choices");
  refused_experts([](Experts& e) { e.dst_place = 0; }, "an input is written");
  refused_experts([](Experts& e) { e.head_stride = 4; }, "overlap");
  refused_experts([](Experts& e) { e.token_stride = 20; }, "unequal distances");
  refused_experts([](Experts& e) { e.token_stride = 17; }, "unequal distances");
  refused_experts([](Experts& e) { e.weights_dim = 1; }, "a weighted sum of another shape");
  refused_experts([](Experts& e) { e.sum_dim = 4; }, "a weighted sum of another shape");
}

void refused_blocks(const std::function<void(BlockLayers&)>& change, const std::string& why) {
  BlockLayers layers;
  change(layers);
  refused(with_header(layers.payload()), why);
}

void layers_in_blocks_parse() {
  const Blob blob = parse(with_header(BlockLayers{}.payload()));
  const auto& lookup = std::get<BlockLookup>(blob.instructions.at(0));
  CHECK(lookup.weight.name == "t");
  CHECK_EQ(lookup.weight.type, 2);
  CHECK_EQ(lookup.rows, 9);
  CHECK_EQ(lookup.factor, 2.0f);
  const auto& linear = std::get<BlockLinear>(blob.instructions.at(1));
  CHECK(linear.weight.name == "w");
  CHECK_EQ(linear.dst.dim, 16);
  CHECK_EQ(linear.bias, 1u);
}

void layers_in_blocks_that_cannot_be_are_refused() {
  refused_blocks([](BlockLayers& b) { b.ids = 1; }, "the rows that are looked up is no input");
  refused_blocks([](BlockLayers& b) { b.rows = 0; }, "a lookup of heads, or in no rows");
  refused_blocks([](BlockLayers& b) { b.dst_heads = 2; }, "a lookup of heads, or in no rows");
  refused_blocks([](BlockLayers& b) { b.factor = std::numeric_limits<double>::infinity(); }, "no number");
  refused_blocks([](BlockLayers& b) { b.src_heads = 2; }, "a linear layer over heads");
  refused_blocks([](BlockLayers& b) { b.src_place = 1; }, "beyond its buffer");
  refused_blocks([](BlockLayers& b) { b.n_bias = 15; }, "a bias of another width");
  refused_blocks([](BlockLayers& b) { b.bias = 2; }, "constant 1 does not exist");
}

void mixers_parse() {
  const Blob blob = parse(with_header(Mixers{}.payload()));
  const auto& convolve = std::get<Convolve>(blob.instructions.at(0));
  CHECK_EQ(convolve.width, 3);
  CHECK_EQ(convolve.bias, 2u);
  CHECK(std::holds_alternative<Multiply>(blob.instructions.at(1)));
  const auto& linear = std::get<LinearAttend>(blob.instructions.at(2));
  CHECK_EQ(linear.layer, 3);
  CHECK(linear.corrects);
  CHECK(linear.has_beta);
  CHECK_EQ(linear.skip, 4u);
  CHECK_EQ(linear.v.offset.at(1), 16);
  CHECK_EQ(std::get<Scan>(blob.instructions.at(3)).rates, 2u);
}

void mixers_that_cannot_be_are_refused() {
  refused_mixers([](Mixers& m) { m.layer = -1; }, "a negative layer");
  refused_mixers([](Mixers& m) { m.width = 0; }, "a convolution of no width");
  refused_mixers([](Mixers& m) { m.width = 4; }, "a convolution of other channels");
  refused_mixers([](Mixers& m) { m.bias = 1; }, "a convolution of other channels");
  refused_mixers([](Mixers& m) { m.weight = 4; }, "constant 4 does not exist");
  refused_mixers([](Mixers& m) { m.dst_dim = 8; }, "differ in shape");
  refused_mixers([](Mixers& m) { m.k_heads = 3; }, "do not match");
  refused_mixers([](Mixers& m) { m.decay_dim = 1; }, "do not match");
  refused_mixers([](Mixers& m) { m.decay_heads = 2, m.decay_dim = 3; }, "do not match");
  refused_mixers([](Mixers& m) { m.beta_dim = 1; }, "do not match");
  refused_mixers([](Mixers& m) { m.skip = 3; }, "skips for another number of heads");
  refused_mixers([](Mixers& m) { m.skip = 9; }, "constant 8 does not exist");
  refused_mixers([](Mixers& m) { m.scan_layer = -1; }, "a negative layer");
  refused_mixers([](Mixers& m) { m.scan_heads = 2; }, "a scan over heads");
  refused_mixers([](Mixers& m) { m.states = 4; }, "differ in shape");
  refused_mixers([](Mixers& m) { m.rates = 1; }, "rates of another scan");
  refused_mixers([](Mixers& m) { m.out_place = 0; }, "an input is written");
}

}  // namespace

int main() {
  layers_in_blocks_parse();
  layers_in_blocks_that_cannot_be_are_refused();
  mixers_parse();
  mixers_that_cannot_be_are_refused();
  experts_parse();
  experts_that_cannot_be_are_refused();
  attention_parses_as_older_programs_say_it_and_as_newer_ones_do();
  attention_that_cannot_be_is_refused();
  linear_layers_and_gates_parse();
  linear_layers_and_gates_that_cannot_be();
  a_blob_parses();
  every_cut_and_every_flipped_bit_is_refused();
  other_versions_name_both();
  what_would_leave_its_buffer_is_refused();
  what_does_not_fit_together_is_refused();
  return 0;
}
