#include "executorch/head_session.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {
namespace {

std::unique_ptr<float[]> room(const MatrixInfo& info) {
  return std::unique_ptr<float[]>(new float[static_cast<std::size_t>(info.max_rows) * info.width]);
}

}  // namespace

ExecuTorchHeadSession::ExecuTorchHeadSession(std::shared_ptr<ExecuTorchHead> head, const CacheOptions& options)
    : head_(std::move(head)),
      built_(build_cache(head_->backend_id(), head_->architecture(), options)),
      logits_(room({info().max_logits, info().vocab_size})),
      hidden_(room({info().max_logits, info().hidden_dim})),
      fused_(room({head_->fuse_rows(), info().hidden_dim})) {}

void ExecuTorchHeadSession::fuse(std::span<const float> features, std::span<float> hidden) {
  const auto width = static_cast<std::size_t>(info().feature_dim);
  const auto out_width = static_cast<std::size_t>(info().hidden_dim);
  const std::size_t n_rows = features.size() / width;
  if (features.size() != n_rows * width || hidden.size() != n_rows * out_width) {
    throw InvalidTensor(error_text("fuse of ", features.size(), " floats into ", hidden.size(), "; rows have ", width,
                                   " and ", out_width));
  }
  const auto most = static_cast<std::size_t>(head_->fuse_rows());
  for (std::size_t row = 0; row < n_rows; row += most) {
    const std::size_t count = std::min(most, n_rows - row);
    head_->fuse(features.subspan(row * width, count * width), fused_.get());
    std::copy_n(fused_.get(), count * out_width, hidden.data() + row * out_width);
  }
}

HeadRows ExecuTorchHeadSession::forward(std::span<const std::int64_t> tokens, std::span<const std::int64_t> positions,
                                        std::span<const float> hidden, std::span<const std::int64_t> logits_indices) {
  check_rows(tokens.size(), positions.size(), logits_indices, info().max_tokens, info().max_logits);
  const auto width = static_cast<std::size_t>(info().hidden_dim);
  if (hidden.size() != tokens.size() * width) {
    throw InvalidTensor(
        error_text(tokens.size(), " tokens but ", hidden.size(), " floats of hidden; rows have ", width));
  }
  static constexpr std::int64_t kFirstRow[] = {0};
  head_->execute(built_.layer, tokens, positions, hidden,
                 logits_indices.empty() ? std::span(kFirstRow) : logits_indices, logits_.get(), hidden_.get());
  return {{logits_.get(), logits_indices.size() * static_cast<std::size_t>(info().vocab_size)},
          {hidden_.get(), logits_indices.size() * width}};
}

}  // namespace agentkv
