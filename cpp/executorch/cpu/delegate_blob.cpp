#include "executorch/cpu/delegate_blob.h"

#include <string>

#include "core/blob_reader.h"
#include "core/errors.h"
#include "executorch/cpu/delegate_check.h"

namespace agentkv::delegate {
namespace {

constexpr char kMagic[] = "AKVD";
constexpr std::int64_t kMaxStride = std::int64_t{1} << 32;

void read(BlobReader& in, std::uint32_t& value) { value = in.read<std::uint32_t>(); }
void read(BlobReader& in, std::int32_t& value) { value = in.read<std::int32_t>(); }
void read(BlobReader& in, float& value) { value = static_cast<float>(in.read<double>()); }
void read(BlobReader& in, bool& value) { value = in.read<std::uint32_t>() != 0; }
void read(BlobReader& in, Place& value) { value = static_cast<Place>(in.read<std::uint32_t>()); }
void read(BlobReader& in, Extent& value) {
  value.constant = in.read<std::int64_t>();
  value.per_token = in.read<std::int64_t>();
  if (value.constant < -kMaxStride || value.constant > kMaxStride || value.per_token < 0 ||
      value.per_token > kMaxStride) {
    damaged("a stride or size out of range");
  }
}

void read(BlobReader& in, std::string& value) { value = in.text(); }

void read(BlobReader& in, Weight& weight) {
  read(in, weight.name);
  read(in, weight.bits);
  read(in, weight.group);
}

void read(BlobReader& in, Blocks& blocks) {
  read(in, blocks.name);
  read(in, blocks.type);
}

void read(BlobReader& in, View& view) {
  read(in, view.place);
  read(in, view.index);
  read(in, view.heads);
  read(in, view.dim);
  for (Extent* extent : {&view.offset, &view.head_stride, &view.token_stride}) read(in, *extent);
}

std::vector<Value> read_values(BlobReader& in) {
  std::vector<Value> values(in.count());
  for (auto& value : values) {
    value.dtype = static_cast<DType>(in.read<std::uint32_t>());
    if (value.dtype != DType::Float32 && value.dtype != DType::Int64) damaged("an unknown dtype");
    value.shape.resize(in.count());
    int growing = 0;
    for (auto& size : value.shape) {
      read(in, size);
      growing += size.per_token != 0;
    }
    // So that sizes are linear in the number of rows, as views are.
    if (growing > 1) damaged("a value of which two dimensions grow with the rows");
  }
  return values;
}

template <class Op, class... Fields>
Instruction read_op(BlobReader& in, Fields Op::*... fields) {
  Op op;
  (read(in, op.*fields), ...);
  return op;
}

Instruction read_instruction(BlobReader& in) {
  using Attend = UpdateAndAttend;
  switch (const auto opcode = in.read<std::uint32_t>()) {
    case 1:
      return read_op(in, &Copy::src, &Copy::dst);
    case 2:
      return read_op(in, &RmsNorm::src, &RmsNorm::dst, &RmsNorm::weight, &RmsNorm::eps);
    case 3:
      return read_op(in, &RopeTable::position, &RopeTable::dst, &RopeTable::inv_freq, &RopeTable::scaling);
    case 4:
      return read_op(in, &Rope::src, &Rope::dst, &Rope::table, &Rope::interleaved);
    case 5:
      return read_op(in, &Attend::layer, &Attend::position, &Attend::scale, &Attend::window, &Attend::q, &Attend::k,
                     &Attend::v, &Attend::dst);
    case 6:
      return read_op(in, &Linear::src, &Linear::dst, &Linear::weight, &Linear::bias);
    case 7:
      return read_op(in, &Add::a, &Add::b, &Add::dst);
    case 8:
      return read_op(in, &Activate::src, &Activate::dst, &Activate::gate);
    case 9:
      return read_op(in, &Gated::src, &Gated::up, &Gated::dst, &Gated::gate);
    case 10:
      return read_op(in, &Attend::layer, &Attend::position, &Attend::scale, &Attend::window, &Attend::chunk,
                     &Attend::cap, &Attend::sink_scores, &Attend::slopes, &Attend::writes, &Attend::q, &Attend::k,
                     &Attend::v, &Attend::dst);
    case 11:
      return read_op(in, &ExpertLinear::src, &ExpertLinear::dst, &ExpertLinear::experts, &ExpertLinear::chosen,
                     &ExpertLinear::weight, &ExpertLinear::bias);
    case 12:
      return read_op(in, &WeightedSum::src, &WeightedSum::weights, &WeightedSum::dst);
    case 13:
      return read_op(in, &Convolve::layer, &Convolve::position, &Convolve::width, &Convolve::weight, &Convolve::bias,
                     &Convolve::src, &Convolve::dst);
    case 14:
      return read_op(in, &Multiply::a, &Multiply::b, &Multiply::dst);
    case 15:
      return read_op(in, &LinearAttend::layer, &LinearAttend::position, &LinearAttend::corrects,
                     &LinearAttend::has_beta, &LinearAttend::skip, &LinearAttend::q, &LinearAttend::k, &LinearAttend::v,
                     &LinearAttend::decay, &LinearAttend::beta, &LinearAttend::dst);
    case 16:
      return read_op(in, &Scan::layer, &Scan::position, &Scan::rates, &Scan::x, &Scan::decay, &Scan::b, &Scan::c,
                     &Scan::dst);
    case 17:
      return read_op(in, &BlockLinear::src, &BlockLinear::dst, &BlockLinear::weight, &BlockLinear::bias);
    case 18:
      return read_op(in, &BlockLookup::ids, &BlockLookup::dst, &BlockLookup::weight, &BlockLookup::rows,
                     &BlockLookup::factor);
    case 19:
      return read_op(in, &BlockExpertLinear::src, &BlockExpertLinear::dst, &BlockExpertLinear::experts,
                     &BlockExpertLinear::chosen, &BlockExpertLinear::weight, &BlockExpertLinear::bias);
    default:
      throw ProgramError(std::string(kOwner) + ": instruction " + std::to_string(opcode) +
                         ", which this build does not have; install the agentkv that exported the model, or export it "
                         "again");
  }
}

}  // namespace

Blob parse_blob(const void* data, std::size_t size) {
  BlobReader in(kOwner, kMagic, kBlobVersion, data, size);
  Blob blob;
  blob.inputs = read_values(in);
  blob.outputs = read_values(in);
  blob.temps.resize(in.count());
  for (auto& floats : blob.temps) {
    floats = in.read<std::int64_t>();
    if (floats < 1 || floats > kMaxStride) damaged("a temporary of " + std::to_string(floats) + " floats per row");
  }
  blob.constants.resize(in.count());
  for (auto& constant : blob.constants) {
    constant.resize(in.count());
    in.take(constant.data(), constant.size() * sizeof(float));
  }
  const auto n_instructions = in.count();
  blob.instructions.reserve(n_instructions);
  for (std::uint32_t i = 0; i < n_instructions; ++i) blob.instructions.push_back(read_instruction(in));
  in.finish();
  check_instructions(blob);
  return blob;
}

}  // namespace agentkv::delegate
