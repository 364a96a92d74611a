#include "executorch/head.h"

#include <array>
#include <utility>

#include "core/message.h"

namespace agentkv {
namespace {

constexpr std::uintmax_t kSmallHead = 4 << 20;  // bytes: a level of the nano model's head, 1.1 MiB, takes 30 us

const std::string kFuse = "fuse";
const std::string kForward = "forward";
constexpr char kFuseExpected[] = "fuse(features [T, F] float32) -> hidden [T, H] float32";
constexpr char kForwardExpected[] =
    "forward(tokens [T] int64, position [T] int64, hidden [T, H] float32, logits_indices [N] int64) -> (logits "
    "[N, draft vocabulary] float32, hidden [N, H] float32)";

}  // namespace

ExecuTorchHead::ExecuTorchHead(std::string path, std::string backend_id)
    : module_(std::move(path), std::move(backend_id), kSmallHead) {
  read_forward();
  read_fuse();
  if (architecture().n_layers != 1) {
    module_.refuse(error_text("its cache has ", architecture().n_layers, " layers"), "heads of one decoder layer");
  }
  module_.load({kForward, kFuse});
}

void ExecuTorchHead::read_forward() {
  if (module_.check_method(kForward, 4, kForwardExpected) < 2) {
    module_.refuse("its forward returns one value", kForwardExpected);
  }
  const std::int32_t n_tokens = module_.input_rows(kForward, 0, kForwardExpected);
  const std::int32_t n_positions = module_.input_rows(kForward, 1, kForwardExpected);
  const MatrixInfo hidden = module_.input_matrix(kForward, 2, kForwardExpected);
  const std::int32_t n_logits = module_.input_rows(kForward, 3, kForwardExpected);
  if (n_positions != n_tokens || hidden.max_rows != n_tokens) {
    module_.refuse(error_text("its forward takes ", n_tokens, " tokens, ", n_positions, " positions and ",
                              hidden.max_rows, " rows of hidden"),
                   kForwardExpected);
  }
  logits_ = module_.output_matrix(kForward, 0, kForwardExpected);
  hidden_out_ = module_.output_matrix(kForward, 1, kForwardExpected);
  if (logits_.max_rows != n_logits || hidden_out_.max_rows != n_logits || hidden_out_.width != hidden.width) {
    module_.refuse(
        error_text("its forward returns logits [", logits_.max_rows, ", ", logits_.width, "] and hidden [",
                   hidden_out_.max_rows, ", ", hidden_out_.width, "] for N = ", n_logits, ", H = ", hidden.width),
        kForwardExpected);
  }
  info_ = {.vocab_size = logits_.width,
           .max_tokens = n_tokens,
           .max_logits = n_logits,
           .feature_dim = 0,
           .hidden_dim = hidden.width};
}

void ExecuTorchHead::read_fuse() {
  module_.check_method(kFuse, 1, kFuseExpected);
  const MatrixInfo features = module_.input_matrix(kFuse, 0, kFuseExpected);
  fused_ = module_.output_matrix(kFuse, 0, kFuseExpected);
  if (fused_.max_rows != features.max_rows || fused_.width != info_.hidden_dim) {
    module_.refuse(error_text("its fuse returns [", fused_.max_rows, ", ", fused_.width, "] for [", features.max_rows,
                              ", ", features.width, "], and its forward takes hidden rows of ", info_.hidden_dim),
                   kFuseExpected);
  }
  info_.feature_dim = features.width;
}

void ExecuTorchHead::fuse(std::span<const float> features, float* hidden) {
  const std::array inputs{InputRows(features, info_.feature_dim)};
  const std::array outputs{OutputRows{hidden, fused_, static_cast<std::size_t>(inputs[0].rows)}};
  module_.run(kFuse, {}, inputs, outputs);
}

void ExecuTorchHead::execute(std::shared_ptr<ByteLayer> layer, std::span<const std::int64_t> tokens,
                             std::span<const std::int64_t> positions, std::span<const float> hidden,
                             std::span<const std::int64_t> logits_indices, float* logits, float* hidden_out) {
  const std::array inputs{InputRows(tokens), InputRows(positions), InputRows(hidden, info_.hidden_dim),
                          InputRows(logits_indices)};
  const std::array outputs{OutputRows{logits, logits_, logits_indices.size()},
                           OutputRows{hidden_out, hidden_out_, logits_indices.size()}};
  module_.run(kForward, std::move(layer), inputs, outputs);
}

}  // namespace agentkv
