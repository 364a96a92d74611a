#include "cpu/linear/expert_rows.h"

#include <algorithm>

#include "core/errors.h"
#include "core/message.h"

namespace agentkv::cpu {
namespace {

// Slots one behind the other, whichever of rows and choices they are counted by.
std::size_t slot_stride(const auto& view) {
  const std::int64_t stride = view.heads == 1 ? view.token_stride : view.head_stride;
  require<InvalidTensor>(view.tokens == 1 || view.token_stride == stride * view.heads,
                         "slots of experts lie at unequal distances");
  require<InvalidTensor>(stride >= view.dim || view.heads * view.tokens == 1, "slots of experts overlap");
  return static_cast<std::size_t>(stride);
}

void check(const HeadsView& x, std::span<const std::int64_t> chosen, const ExpertShape& shape,
           std::span<const float> bias, const MutableHeadsView& y) {
  require<InvalidTensor>(x.dim == shape.inputs && y.dim == shape.outputs, "rows of ", x.dim, " and outputs of ", y.dim,
                         " for experts of [", shape.outputs, ", ", shape.inputs, "]");
  require<InvalidTensor>(x.tokens == y.tokens && (x.heads == 1 || x.heads == y.heads) &&
                             chosen.size() == static_cast<std::size_t>(y.heads) * static_cast<std::size_t>(y.tokens),
                         chosen.size(), " choices for ", y.tokens, " rows of ", y.heads);
  const auto outputs = static_cast<std::size_t>(shape.experts) * static_cast<std::size_t>(shape.outputs);
  require<InvalidTensor>(bias.empty() || bias.size() == outputs, "a bias of ", bias.size(), " for ", outputs,
                         " outputs");
}

}  // namespace

void Routes::assign(std::span<const std::int64_t> experts, int n_experts) {
  begin_.assign(static_cast<std::size_t>(n_experts) + 1, 0);
  for (const std::int64_t expert : experts) {
    require<InvalidTensor>(expert >= 0 && expert < n_experts, "expert ", expert, " of ", n_experts);
    ++begin_[static_cast<std::size_t>(expert) + 1];
  }
  for (std::size_t e = 1; e < begin_.size(); ++e) begin_[e] += begin_[e - 1];
  slots_.resize(experts.size());
  std::vector<std::size_t> next(begin_.begin(), begin_.end() - 1);
  for (std::size_t slot = 0; slot < experts.size(); ++slot) {
    slots_[next[static_cast<std::size_t>(experts[slot])]++] = static_cast<std::int32_t>(slot);
  }
}

void ExpertRows::assign(const HeadsView& x, std::span<const std::int64_t> chosen, const ExpertShape& shape,
                        std::span<const float> bias, const MutableHeadsView& y) {
  check(x, chosen, shape, bias, y);
  shape_ = shape;
  x_stride_ = slot_stride(x);
  y_stride_ = slot_stride(y);
  routes_.assign(chosen, shape.experts);
  of_x_.assign(routes_.slots().begin(), routes_.slots().end());
  if (x.heads != y.heads) std::ranges::for_each(of_x_, [&](std::int32_t& slot) { slot /= y.heads; });
}

std::vector<ExpertTask> ExpertRows::tasks(std::size_t panel_bytes) const {
  std::vector<ExpertTask> tasks;
  const int panels = (shape_.outputs + kPanel - 1) / kPanel;
  for (int e = 0; e < shape_.experts; ++e) {
    const auto slots = routes_.of(e);
    if (slots.empty()) continue;
    const int per_task = panels_per_task(panel_bytes, static_cast<int>(slots.size()));
    for (int first = 0; first < panels; first += per_task) {
      tasks.push_back({e, {first, std::min(per_task, panels - first)}, routes_.begin(e), slots});
    }
  }
  return tasks;
}

std::span<const float> ExpertRows::bias_of(int expert, std::span<const float> bias) const {
  const auto outputs = static_cast<std::size_t>(shape_.outputs);
  return bias.empty() ? bias : bias.subspan(static_cast<std::size_t>(expert) * outputs, outputs);
}

}  // namespace agentkv::cpu
