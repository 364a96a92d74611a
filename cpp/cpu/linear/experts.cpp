#include "cpu/linear/experts.h"

#include <cstddef>
#include <vector>

#include "core/errors.h"
#include "core/message.h"
#include "cpu/linear/expert_rows.h"
#include "cpu/linear/panels.h"
#include "cpu/linear/quantized_rows.h"
#include "cpu/tasks.h"

namespace agentkv::cpu {
namespace {

RowCodes from_row(RowCodes codes, std::size_t row) {
  codes.codes += row * codes.stride;
  codes.sums += row * codes.sum_stride;
  codes.totals += row;
  codes.scales += row;
  codes.zeros += row;
  return codes;
}

}  // namespace

void expert_linear(const HeadsView& x, std::span<const std::int64_t> chosen, std::span<const PackedLinear> experts,
                   std::span<const float> bias, const MutableHeadsView& y, const ParallelFor& parallel_for) {
  require<InvalidTensor>(!experts.empty(), "no experts");
  const LinearShape& shape = experts[0].shape();
  thread_local struct {
    ExpertRows rows;
    QuantizedRows all, by_expert;
  } kept;
  auto& [rows, all, by_expert] = kept;
  rows.assign(x, chosen, {static_cast<int>(experts.size()), shape.outputs, shape.inputs}, bias, y);
  if (shape.bits != 32) {
    all.assign(x.data, x.heads * x.tokens, x.dim, rows.x_stride(), parallel_for);
    by_expert.pick(all, rows.of_x());
  }

  const std::vector<ExpertTask> tasks = rows.tasks(experts[0].panel_bytes());
  // The names of thread_local variables would be another thread's in there.
  const auto task = [&, &rows = rows, &by_expert = by_expert](std::size_t i) {
    const auto& [e, panels, first, slots] = tasks[i];
    const PackedLinear& weight = experts[static_cast<std::size_t>(e)];
    const auto own_bias = rows.bias_of(e, bias);
    const Destination to{y.data, rows.y_stride(), slots};
    if (shape.bits == 32) {
      const auto of_x = rows.of_x().subspan(first, slots.size());
      multiply_panels(weight, panels, {x.data, rows.x_stride(), of_x}, own_bias, to);
    } else {
      const RowCodes codes = from_row(by_expert.view(), first);
      multiply_panels(weight, panels, codes, static_cast<int>(slots.size()), own_bias, to);
    }
  };
  run_tasks(tasks.size(), parallel_for, task);
}

}  // namespace agentkv::cpu
