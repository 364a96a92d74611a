#include "executorch/delegate_blob.h"

#include <array>
#include <cstring>
#include <string>
#include <type_traits>

#include "core/errors.h"

namespace agentkv::delegate {
namespace {

constexpr char kMagic[4] = {'A', 'K', 'V', 'D'};
constexpr std::uint32_t kMaxCount = 1u << 20;  // far above any real count, far below what would exhaust memory
constexpr std::int64_t kMaxTokens = 1 << 24;
constexpr std::int64_t kMaxStride = std::int64_t{1} << 32;

[[noreturn]] void damaged(const std::string& what) {
  throw ProgramError("attention delegate: damaged blob: " + what + "; export the model again");
}

std::uint32_t crc32(const std::uint8_t* data, std::size_t size) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> t{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = (c & 1) ? 0xEDB88320u ^ (c >> 1) : c >> 1;
      t[i] = c;
    }
    return t;
  }();
  std::uint32_t crc = ~0u;
  for (std::size_t i = 0; i < size; ++i) crc = table[(crc ^ data[i]) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

class Reader {
 public:
  Reader(const std::uint8_t* data, std::size_t size) : at_(data), left_(size) {}

  template <typename T>
  T read() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    take(&value, sizeof(T));
    return value;
  }

  void take(void* out, std::size_t n) {
    if (n > left_) damaged("it ends early");
    if (n > 0) std::memcpy(out, at_, n);
    at_ += n;
    left_ -= n;
  }

  std::uint32_t count() {
    const auto n = read<std::uint32_t>();
    if (n > kMaxCount) damaged("a list of " + std::to_string(n) + " entries");
    return n;
  }

  std::size_t left() const { return left_; }

 private:
  const std::uint8_t* at_;
  std::size_t left_;
};

Affine read_affine(Reader& in) {
  Affine a;
  a.constant = in.read<std::int64_t>();
  a.per_token = in.read<std::int64_t>();
  if (a.constant < -kMaxStride || a.constant > kMaxStride || a.per_token < 0 || a.per_token > kMaxStride) {
    damaged("a stride or size out of range");
  }
  return a;
}

View read_view(Reader& in) {
  View v;
  v.place = static_cast<Place>(in.read<std::uint32_t>());
  v.index = in.read<std::uint32_t>();
  v.heads = in.read<std::int32_t>();
  v.dim = in.read<std::int32_t>();
  v.offset = read_affine(in);
  v.head_stride = read_affine(in);
  v.token_stride = read_affine(in);
  return v;
}

std::vector<Value> read_values(Reader& in) {
  std::vector<Value> values(in.count());
  for (auto& value : values) {
    value.dtype = static_cast<DType>(in.read<std::uint32_t>());
    if (value.dtype != DType::kFloat32 && value.dtype != DType::kInt64) damaged("an unknown dtype");
    value.shape.resize(in.count());
    for (auto& size : value.shape) size = read_affine(in);
  }
  return values;
}

Instruction read_instruction(Reader& in) {
  switch (const auto opcode = in.read<std::uint32_t>()) {
    case 1: {
      Copy op;
      op.src = read_view(in);
      op.dst = read_view(in);
      return op;
    }
    case 2: {
      RmsNorm op;
      op.src = read_view(in);
      op.dst = read_view(in);
      op.weight = in.read<std::uint32_t>();
      op.eps = static_cast<float>(in.read<double>());
      return op;
    }
    case 3: {
      RopeTable op;
      op.position = in.read<std::uint32_t>();
      op.dst = read_view(in);
      op.inv_freq = in.read<std::uint32_t>();
      op.scaling = static_cast<float>(in.read<double>());
      return op;
    }
    case 4: {
      Rope op;
      op.src = read_view(in);
      op.dst = read_view(in);
      op.table = read_view(in);
      op.interleaved = in.read<std::uint32_t>() != 0;
      return op;
    }
    case 5: {
      UpdateAndAttend op;
      op.layer = static_cast<std::int32_t>(in.read<std::uint32_t>());
      op.position = in.read<std::uint32_t>();
      op.scale = static_cast<float>(in.read<double>());
      op.window = in.read<std::int32_t>();
      op.q = read_view(in);
      op.k = read_view(in);
      op.v = read_view(in);
      op.dst = read_view(in);
      return op;
    }
    default:
      damaged("unknown instruction " + std::to_string(opcode));
  }
}

// Every view must stay inside its buffer for any number of rows, so that execute need not look again.
class Checker {
 public:
  explicit Checker(const Blob& blob) : blob_(blob) {}

  void operator()(const Copy& op) const {
    same(op.src, op.dst);
    writable(op.dst);
  }
  void operator()(const RmsNorm& op) const {
    same(op.src, op.dst);
    writable(op.dst);
    if (constant(op.weight).size() != static_cast<std::size_t>(op.src.dim)) damaged("a norm weight of another width");
  }
  void operator()(const RopeTable& op) const {
    position(op.position);
    writable(op.dst);
    if (op.dst.heads != 1 || constant(op.inv_freq).size() * 2 != static_cast<std::size_t>(op.dst.dim)) {
      damaged("a rope table of another width");
    }
  }
  void operator()(const Rope& op) const {
    same(op.src, op.dst);
    writable(op.dst);
    inside(op.table);
    if (op.table.heads != 1 || op.table.dim > op.src.dim || op.table.dim % 2 != 0) damaged("a rope of another width");
  }
  void operator()(const UpdateAndAttend& op) const {
    position(op.position);
    inside(op.q);
    inside(op.k);
    inside(op.v);
    writable(op.dst);
    if (op.layer < 0 || op.window < 0) damaged("a negative layer or window");
    if (op.q.heads != op.dst.heads || op.q.dim != op.dst.dim || op.k.heads != op.v.heads || op.k.dim != op.v.dim) {
      damaged("attention over tensors that do not match");
    }
  }

 private:
  void same(const View& src, const View& dst) const {
    inside(src);
    inside(dst);
    if (src.heads != dst.heads || src.dim != dst.dim) damaged("source and destination differ in shape");
  }
  void writable(const View& view) const {
    if (view.place == Place::kInput) damaged("an input is written");
    inside(view);
  }
  const std::vector<float>& constant(std::uint32_t index) const {
    if (index >= blob_.constants.size()) damaged("constant " + std::to_string(index) + " does not exist");
    return blob_.constants[index];
  }
  void position(std::uint32_t index) const {
    if (index >= blob_.inputs.size() || blob_.inputs[index].dtype != DType::kInt64) damaged("positions are no input");
    const auto& shape = blob_.inputs[index].shape;
    if (shape.size() != 1 || shape[0].constant != 0 || shape[0].per_token != 1)
      damaged("positions are not one per row");
  }
  std::int64_t floats(const View& view, std::int64_t n_tokens) const {
    if (view.place == Place::kTemp) {
      if (view.index >= blob_.temps.size()) damaged("a temporary does not exist");
      return blob_.temps[view.index] * n_tokens;
    }
    if (view.place != Place::kInput && view.place != Place::kOutput) damaged("a view of nothing");
    const auto& values = view.place == Place::kInput ? blob_.inputs : blob_.outputs;
    if (view.index >= values.size()) damaged("an input or output does not exist");
    if (values[view.index].dtype != DType::kFloat32) damaged("a view of integers");
    std::int64_t n = 1;
    for (const auto& size : values[view.index].shape) {
      const std::int64_t extent = size.at(n_tokens);
      if (extent < 0 || (extent > 0 && n > (std::int64_t{1} << 60) / extent)) damaged("a size out of range");
      n *= extent;
    }
    return n;
  }
  void inside(const View& view) const {
    if (view.heads < 1 || view.dim < 1 || view.heads > 1 << 20 || view.dim > 1 << 24) damaged("an empty or huge view");
    if (view.token_stride.per_token != 0) damaged("a row stride that depends on the number of rows");
    // Offset and strides are linear in the number of rows, so the ends of its range bound what lies between.
    for (const std::int64_t n_tokens : {std::int64_t{1}, kMaxTokens}) {
      const std::int64_t offset = view.offset.at(n_tokens), head = view.head_stride.at(n_tokens);
      const std::int64_t row = view.token_stride.constant;
      if (offset < 0 || head < 0 || row < 0) damaged("a negative stride");
      const std::int64_t end = offset + (view.heads - 1) * head + (n_tokens - 1) * row + view.dim;
      if (end > floats(view, n_tokens)) damaged("a view beyond its buffer");
    }
  }

  const Blob& blob_;
};

}  // namespace

Blob parse_blob(const void* data, std::size_t size) {
  Reader header(static_cast<const std::uint8_t*>(data), size);
  char magic[sizeof(kMagic)];
  header.take(magic, sizeof(magic));
  if (std::memcmp(magic, kMagic, sizeof(magic)) != 0) damaged("it does not start as one");
  const auto version = header.read<std::uint32_t>();
  if (version != kBlobVersion) {
    throw ProgramError("attention delegate: blob version " + std::to_string(version) + ", this build reads version " +
                       std::to_string(kBlobVersion) +
                       "; export the model again, or install the agentkv that exported it");
  }
  const auto payload_size = header.read<std::uint32_t>();
  const auto checksum = header.read<std::uint32_t>();
  if (payload_size > header.left()) damaged("it ends early");
  const auto* payload = static_cast<const std::uint8_t*>(data) + (size - header.left());
  if (crc32(payload, payload_size) != checksum) damaged("its checksum does not match");

  Reader in(payload, payload_size);
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
  if (in.left() != 0) damaged("it goes on after its end");
  const Checker check(blob);
  for (const auto& instruction : blob.instructions) std::visit(check, instruction);
  return blob;
}

}  // namespace agentkv::delegate
