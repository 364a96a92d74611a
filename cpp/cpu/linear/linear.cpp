#include "cpu/linear/linear.h"

#include <algorithm>

#include "core/errors.h"
#include "core/message.h"
#include "cpu/linear/panels.h"
#include "cpu/tasks.h"

namespace agentkv::cpu {

void linear(const QuantizedRows& x, const PackedLinear& weight, std::span<const float> bias, float* y,
            std::size_t y_stride, const ParallelFor& parallel_for) {
  const LinearShape& shape = weight.shape();
  const auto outputs = static_cast<std::size_t>(shape.outputs);
  require<InvalidTensor>(x.inputs() == shape.inputs, "rows of ", x.inputs(), " inputs for a weight of ", shape.inputs);
  require<InvalidTensor>(bias.empty() || bias.size() == outputs, "a bias of ", bias.size(), " for ", outputs,
                         " outputs");
  require<InvalidTensor>(shape.bits != 32, "rows of codes for a weight of floats");
  require<InvalidTensor>(y_stride >= outputs, "rows of ", outputs, " outputs, ", y_stride, " apart: they overlap");
  if (x.rows() == 0) return;

  const int per_task = panels_per_task(weight.panel_bytes(), x.rows()), panels = panels_of(shape);
  const auto task = [&](std::size_t i) {
    const int first = static_cast<int>(i) * per_task;
    multiply_panels(weight, {first, std::min(per_task, panels - first)}, x.view(), x.rows(), bias, {y, y_stride, {}});
  };
  run_tasks(static_cast<std::size_t>((panels + per_task - 1) / per_task), parallel_for, task);
}

}  // namespace agentkv::cpu
