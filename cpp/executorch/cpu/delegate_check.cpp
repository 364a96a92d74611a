#include "executorch/cpu/delegate_check.h"

#include <cmath>

#include "core/errors.h"

namespace agentkv::delegate {
namespace {

constexpr std::int64_t kMaxTokens = 1 << 24;
constexpr std::int32_t kMaxWidth = 1 << 12;
constexpr std::uint32_t kMaxExperts = 1 << 16;

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
    if (op.layer < 0 || op.window < 0 || op.chunk < 0) damaged("a negative layer, window or chunk");
    if (!(op.cap >= 0) || std::isinf(op.cap)) damaged("a cap on scores that is no positive number");
    if (op.q.heads != op.dst.heads || op.k.heads != op.v.heads || op.q.dim != op.k.dim || op.v.dim != op.dst.dim) {
      damaged("attention over tensors that do not match");
    }
    for (const std::uint32_t index : {op.sink_scores, op.slopes}) {
      if (index != 0 && constant(index - 1).size() != static_cast<std::size_t>(op.q.heads)) {
        damaged("sink scores or slopes for another number of heads");
      }
    }
  }
  void operator()(const Linear& op) const {
    inside(op.src);
    writable(op.dst);
    if (op.src.heads != 1 || op.dst.heads != 1) damaged("a linear layer over heads");
    if (op.weight.bits == 32) damaged("a linear layer of floats");
    if (overlap(op.src, op.dst)) damaged("a linear layer in place");
    if (op.bias != 0 && constant(op.bias - 1).size() != static_cast<std::size_t>(op.dst.dim)) {
      damaged("a bias of another width");
    }
  }
  void operator()(const BlockLinear& op) const {
    inside(op.src);
    writable(op.dst);
    if (op.src.heads != 1 || op.dst.heads != 1) damaged("a linear layer over heads");
    if (overlap(op.src, op.dst)) damaged("a linear layer in place");
    if (op.bias != 0 && constant(op.bias - 1).size() != static_cast<std::size_t>(op.dst.dim)) {
      damaged("a bias of another width");
    }
  }
  void operator()(const BlockLookup& op) const {
    per_row(op.ids, 1, "the rows that are looked up");
    writable(op.dst);
    if (op.dst.heads != 1 || op.rows < 1) damaged("a lookup of heads, or in no rows");
    if (!std::isfinite(op.factor)) damaged("a factor that is no number");
  }
  void operator()(const ExpertLinear& op) const { experts(op); }
  void operator()(const BlockExpertLinear& op) const { experts(op); }
  void operator()(const WeightedSum& op) const {
    inside(op.src);
    inside(op.weights);
    writable(op.dst);
    if (op.weights.heads != 1 || op.weights.dim != op.src.heads || op.dst.heads != 1 || op.dst.dim != op.src.dim) {
      damaged("a weighted sum of another shape");
    }
    if (overlap(op.src, op.dst) || overlap(op.weights, op.dst)) damaged("a weighted sum in place");
  }
  void operator()(const Convolve& op) const {
    position(op.position);
    same(op.src, op.dst);
    writable(op.dst);
    if (op.layer < 0 || op.width < 1 || op.width > kMaxWidth) damaged("a negative layer, or a convolution of no width");
    const auto channels = static_cast<std::size_t>(op.src.heads) * static_cast<std::size_t>(op.src.dim);
    if (constant(op.weight).size() != channels * static_cast<std::size_t>(op.width) ||
        (op.bias != 0 && constant(op.bias - 1).size() != channels)) {
      damaged("a convolution of other channels");
    }
  }
  void operator()(const LinearAttend& op) const {
    position(op.position);
    for (const View* view : {&op.q, &op.k, &op.v, &op.decay, &op.beta}) inside(*view);
    writable(op.dst);
    if (op.layer < 0) damaged("a negative layer");
    same(op.q, op.k);
    same(op.v, op.dst);
    const bool per_head = op.decay.heads == 1 && op.decay.dim == op.v.heads;
    const bool per_number = op.decay.heads == op.v.heads && op.decay.dim == op.k.dim;
    if (op.v.heads % op.q.heads != 0 || !(per_head || per_number) ||
        (op.has_beta && (op.beta.heads != 1 || op.beta.dim != op.v.heads))) {
      damaged("linear attention over tensors that do not match");
    }
    if (op.skip != 0 && constant(op.skip - 1).size() != static_cast<std::size_t>(op.v.heads)) {
      damaged("skips for another number of heads");
    }
    for (const View* view : {&op.q, &op.k, &op.v, &op.decay, &op.beta}) {
      if (overlap(*view, op.dst)) damaged("linear attention in place");
    }
  }
  void operator()(const Scan& op) const {
    position(op.position);
    for (const View* view : {&op.x, &op.decay, &op.b, &op.c}) {
      inside(*view);
      if (view->heads != 1) damaged("a scan over heads");
      if (overlap(*view, op.dst)) damaged("a scan in place");
    }
    writable(op.dst);
    if (op.layer < 0) damaged("a negative layer");
    same(op.x, op.dst);
    same(op.x, op.decay);
    same(op.b, op.c);
    if (constant(op.rates).size() != static_cast<std::size_t>(op.b.dim) * static_cast<std::size_t>(op.x.dim)) {
      damaged("rates of another scan");
    }
  }
  void operator()(const Multiply& op) const {
    same(op.a, op.dst);
    same(op.b, op.dst);
    writable(op.dst);
  }
  void operator()(const Add& op) const {
    same(op.a, op.dst);
    same(op.b, op.dst);
    writable(op.dst);
  }
  void operator()(const Activate& op) const {
    same(op.src, op.dst);
    writable(op.dst);
    known(op.gate);
  }
  void operator()(const Gated& op) const {
    same(op.src, op.dst);
    same(op.up, op.dst);
    writable(op.dst);
    known(op.gate);
  }

 private:
  static void known(std::uint32_t gate) {
    if (gate > 3) damaged("an unknown gate");
  }
  static bool overlap(const View& a, const View& b) { return a.place == b.place && a.index == b.index; }
  void same(const View& src, const View& dst) const {
    inside(src);
    inside(dst);
    if (src.heads != dst.heads || src.dim != dst.dim) damaged("source and destination differ in shape");
  }
  void writable(const View& view) const {
    if (view.place == Place::Input) damaged("an input is written");
    inside(view);
  }
  const std::vector<float>& constant(std::uint32_t index) const {
    if (index >= blob_.constants.size()) damaged("constant " + std::to_string(index) + " does not exist");
    return blob_.constants[index];
  }
  void position(std::uint32_t index) const { per_row(index, 1, "positions"); }
  // Integers, `width` for each row.
  void per_row(std::uint32_t index, std::int32_t width, const std::string& what) const {
    if (index >= blob_.inputs.size() || blob_.inputs[index].dtype != DType::Int64) damaged(what + " is no input");
    const auto& shape = blob_.inputs[index].shape;
    std::int64_t rest = 1;
    for (std::size_t d = 1; d < shape.size(); ++d) rest *= shape[d].per_token == 0 ? shape[d].constant : 0;
    if (shape.empty() || shape[0].constant != 0 || shape[0].per_token != 1 || rest != width) {
      damaged(what + " has not " + std::to_string(width) + " for each row");
    }
  }
  void experts(const auto& op) const {
    inside(op.src);
    writable(op.dst);
    if (op.src.heads != 1 && op.src.heads != op.dst.heads) damaged("experts over other choices");
    if (overlap(op.src, op.dst)) damaged("experts in place");
    slots(op.src);
    slots(op.dst);
    per_row(op.chosen, op.dst.heads, "the choice of experts");
    if (op.experts < 1 || op.experts > kMaxExperts) damaged(std::to_string(op.experts) + " experts");
    const std::size_t outputs = std::size_t{op.experts} * static_cast<std::size_t>(op.dst.dim);
    if (op.bias != 0 && constant(op.bias - 1).size() != outputs) damaged("a bias of another width");
  }
  // Heads and rows, counted one behind the other, lie at equal distances.
  static void slots(const View& view) {
    const std::int64_t stride = view.heads == 1 ? view.token_stride.constant : view.head_stride.constant;
    if ((view.heads > 1 && view.head_stride.per_token != 0) || stride < view.dim ||
        view.token_stride.constant != stride * view.heads) {
      damaged("slots of experts overlap, or lie at unequal distances");
    }
  }
  std::int64_t floats(const View& view, std::int64_t n_tokens) const {
    if (view.place == Place::Temp) {
      if (view.index >= blob_.temps.size()) damaged("a temporary does not exist");
      return blob_.temps[view.index] * n_tokens;
    }
    if (view.place != Place::Input && view.place != Place::Output) damaged("a view of nothing");
    const auto& values = view.place == Place::Input ? blob_.inputs : blob_.outputs;
    if (view.index >= values.size()) damaged("an input or output does not exist");
    if (values[view.index].dtype != DType::Float32) damaged("a view of integers");
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
      const std::int64_t room = floats(view, n_tokens);
      if (head > room || row > room || offset > room) damaged("a view beyond its buffer");
      if (view.heads > 1 && head > room / (view.heads - 1)) damaged("a view beyond its buffer");
      if (n_tokens > 1 && row > room / (n_tokens - 1)) damaged("a view beyond its buffer");
      const std::int64_t end = offset + (view.heads - 1) * head + (n_tokens - 1) * row + view.dim;
      if (end > room) damaged("a view beyond its buffer");
    }
  }

  const Blob& blob_;
};

}  // namespace

void damaged(const std::string& what) {
  throw ProgramError(std::string(kOwner) + ": damaged blob: " + what + "; export the model again");
}

void check_instructions(const Blob& blob) {
  const Checker check(blob);
  for (const auto& instruction : blob.instructions) std::visit(check, instruction);
}

}  // namespace agentkv::delegate
