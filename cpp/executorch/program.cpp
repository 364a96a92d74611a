#include "executorch/program.h"

#include <array>
#include <utility>

namespace agentkv {
namespace {

constexpr char kExpected[] =
    "forward(tokens [T] int64, position [T] int64, logits_indices [N] int64) -> logits [N, vocab_size] float32, and "
    "features [T, F] float32 where a draft head wants them";

}  // namespace

ExecuTorchProgram::ExecuTorchProgram(std::string path, std::string backend_id)
    : module_(std::move(path), std::move(backend_id)) {
  const std::size_t n_outputs = module_.check_method(kForward, 3, kExpected);
  std::array<std::int32_t, 3> rows{};
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = module_.input_rows(kForward, i, kExpected);
  if (rows[0] != rows[1]) {
    module_.refuse(
        "its forward takes " + std::to_string(rows[0]) + " tokens and " + std::to_string(rows[1]) + " positions",
        kExpected);
  }
  logits_ = module_.output_matrix(kForward, 0, kExpected);
  if (logits_.max_rows != rows[2]) module_.refuse("output 0 of its forward is not [N, vocab_size]", kExpected);
  if (n_outputs > 1) {
    features_ = module_.output_matrix(kForward, 1, kExpected);
    if (features_.max_rows != rows[0]) module_.refuse("output 1 of its forward is not [T, F]", kExpected);
  }
  info_ = {.vocab_size = logits_.width, .max_tokens = rows[0], .max_logits = rows[2], .feature_dim = features_.width};
  module_.load({kForward});
}

}  // namespace agentkv
