#include "cpu/linear/experts.h"

#include <algorithm>
#include <cstddef>

#include "core/errors.h"
#include "core/message.h"
#include "cpu/linear/panels.h"
#include "cpu/linear/quantized_rows.h"
#include "cpu/tasks.h"

namespace agentkv::cpu {
namespace {

struct Task {
  int expert;
  Panels panels;
};

// Slots one behind the other, whichever of rows and choices they are counted by.
std::int64_t slot_stride(const auto& view) {
  const std::int64_t stride = view.heads == 1 ? view.token_stride : view.head_stride;
  require<InvalidTensor>(view.tokens == 1 || view.token_stride == stride * view.heads,
                         "slots of experts lie at unequal distances");
  require<InvalidTensor>(stride >= view.dim || view.heads * view.tokens == 1, "slots of experts overlap");
  return stride;
}

void check(const HeadsView& x, std::span<const std::int64_t> chosen, std::span<const PackedLinear> experts,
           std::span<const float> bias, const MutableHeadsView& y) {
  require<InvalidTensor>(!experts.empty(), "no experts");
  const LinearShape& shape = experts[0].shape();
  require<InvalidTensor>(x.dim == shape.inputs && y.dim == shape.outputs, "rows of ", x.dim, " and outputs of ", y.dim,
                         " for experts of [", shape.outputs, ", ", shape.inputs, "]");
  require<InvalidTensor>(x.tokens == y.tokens && (x.heads == 1 || x.heads == y.heads) &&
                             chosen.size() == static_cast<std::size_t>(y.heads) * static_cast<std::size_t>(y.tokens),
                         chosen.size(), " choices for ", y.tokens, " rows of ", y.heads);
  const auto outputs = experts.size() * static_cast<std::size_t>(shape.outputs);
  require<InvalidTensor>(bias.empty() || bias.size() == outputs, "a bias of ", bias.size(), " for ", outputs,
                         " outputs");
}

std::vector<Task> tasks_of(const Routes& routes, std::span<const PackedLinear> experts) {
  std::vector<Task> tasks;
  for (int e = 0; e < static_cast<int>(experts.size()); ++e) {
    const auto rows = static_cast<int>(routes.of(e).size());
    if (rows == 0) continue;
    const PackedLinear& weight = experts[static_cast<std::size_t>(e)];
    const int per_task = panels_per_task(weight.panel_bytes(), rows), panels = panels_of(weight.shape());
    for (int first = 0; first < panels; first += per_task) {
      tasks.push_back({e, {first, std::min(per_task, panels - first)}});
    }
  }
  return tasks;
}

RowCodes from_row(RowCodes codes, std::size_t row) {
  codes.codes += row * codes.stride;
  codes.sums += row * codes.sum_stride;
  codes.totals += row;
  codes.scales += row;
  codes.zeros += row;
  return codes;
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

void expert_linear(const HeadsView& x, std::span<const std::int64_t> chosen, std::span<const PackedLinear> experts,
                   std::span<const float> bias, const MutableHeadsView& y, const ParallelFor& parallel_for) {
  check(x, chosen, experts, bias, y);
  const LinearShape& shape = experts[0].shape();
  const auto x_stride = static_cast<std::size_t>(slot_stride(x)), y_stride = static_cast<std::size_t>(slot_stride(y));
  thread_local struct {
    Routes routes;
    QuantizedRows all, by_expert;
    std::vector<std::int32_t> x_rows;
  } kept;
  auto& [routes, all, by_expert, x_rows] = kept;
  routes.assign(chosen, static_cast<int>(experts.size()));
  x_rows.assign(routes.slots().begin(), routes.slots().end());
  if (x.heads != y.heads) std::ranges::for_each(x_rows, [&](std::int32_t& slot) { slot /= y.heads; });
  if (shape.bits != 32) {
    all.assign(x.data, x.heads * x.tokens, x.dim, x_stride, parallel_for);
    by_expert.pick(all, x_rows);
  }

  const std::vector<Task> tasks = tasks_of(routes, experts);
  // The names of thread_local variables would be another thread's in there.
  const auto task = [&, &routes = routes, &by_expert = by_expert, &x_rows = x_rows](std::size_t i) {
    const auto [e, panels] = tasks[i];
    const PackedLinear& weight = experts[static_cast<std::size_t>(e)];
    const auto outputs = static_cast<std::size_t>(shape.outputs);
    const auto own_bias = bias.empty() ? bias : bias.subspan(static_cast<std::size_t>(e) * outputs, outputs);
    const auto slots = routes.of(e);
    const Destination to{y.data, y_stride, slots};
    if (shape.bits == 32) {
      const auto rows = std::span<const std::int32_t>(x_rows).subspan(routes.begin(e), slots.size());
      multiply_panels(weight, panels, {x.data, x_stride, rows}, own_bias, to);
    } else {
      const RowCodes codes = from_row(by_expert.view(), routes.begin(e));
      multiply_panels(weight, panels, codes, static_cast<int>(slots.size()), own_bias, to);
    }
  };
  run_tasks(tasks.size(), parallel_for, task);
}

}  // namespace agentkv::cpu
