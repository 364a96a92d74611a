#include "cpu/blocks/block_experts.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "core/errors.h"
#include "core/message.h"
#include "cpu/blocks/activation_blocks.h"
#include "cpu/blocks/block_panels.h"
#include "cpu/linear/expert_rows.h"
#include "cpu/tasks.h"

namespace agentkv::cpu {
namespace {

// Rows of x by expert, as the experts' weights meet them.
class RowsByExpert {
 public:
  void assign(const HeadsView& x, const ExpertRows& rows, BlockType type, const ParallelFor& parallel_for) {
    if (meets_codes(type)) {
      all_.assign(x.data, x.heads * x.tokens, x.dim, rows.x_stride(), type, parallel_for);
      codes_.pick(all_, rows.of_x());
      rows_ = {.codes = codes_.view()};
      return;
    }
    const auto inputs = static_cast<std::size_t>(x.dim);
    floats_.resize(std::max(floats_.size(), rows.of_x().size() * inputs));
    rows_ = {.x = floats_.data(), .stride = inputs};
    for (float* at = floats_.data(); const std::int32_t row : rows.of_x()) {
      std::memcpy(at, x.data + static_cast<std::size_t>(row) * rows.x_stride(), inputs * sizeof(float));
      at += inputs;
    }
  }

  BlockRows part(std::size_t first, std::size_t count) const {
    BlockRows part = rows_;
    part.x += first * part.stride;
    part.codes.codes += first * part.codes.stride;
    part.codes.sums += first * part.codes.sum_stride;
    part.codes.scales += first * part.codes.scale_stride;
    part.codes.offsets += first * part.codes.scale_stride;
    part.count = static_cast<int>(count);
    return part;
  }

 private:
  BlockRows rows_;
  std::vector<float> floats_;
  ActivationBlocks all_, codes_;
};

// Kernels write rows one behind the other: these go to their slots through memory of this thread.
void multiply_into_slots(const BlockWeight& weight, const ExpertTask& task, const BlockRows& rows,
                         std::span<const float> bias, float* y, std::size_t y_stride) {
  thread_local std::vector<float> outputs;
  const auto width = static_cast<std::size_t>(outputs_of(weight.shape(), task.panels));
  outputs.resize(std::max(outputs.size(), task.slots.size() * width));
  multiply_panels(weight, task.panels, rows, bias, outputs.data(), width);
  const float* at = outputs.data();
  for (const std::int32_t slot : task.slots) {
    std::memcpy(y + static_cast<std::size_t>(slot) * y_stride + task.panels.first * kPanel, at, width * sizeof(float));
    at += width;
  }
}

}  // namespace

void block_expert_linear(const HeadsView& x, std::span<const std::int64_t> chosen, std::span<const BlockWeight> experts,
                         std::span<const float> bias, const MutableHeadsView& y, const ParallelFor& parallel_for) {
  require<InvalidTensor>(!experts.empty(), "no experts");
  const BlockShape& shape = experts[0].shape();
  thread_local struct {
    ExpertRows rows;
    RowsByExpert by_expert;
  } kept;
  auto& [rows, by_expert] = kept;
  rows.assign(x, chosen, {static_cast<int>(experts.size()), shape.outputs, shape.inputs}, bias, y);
  by_expert.assign(x, rows, shape.type, parallel_for);

  const std::vector<ExpertTask> tasks = rows.tasks(experts[0].panel_bytes());
  // The names of thread_local variables would be another thread's in there.
  run_tasks(tasks.size(), parallel_for, [&, &rows = rows, &by_expert = by_expert](std::size_t i) {
    const ExpertTask& task = tasks[i];
    multiply_into_slots(experts[static_cast<std::size_t>(task.expert)], task,
                        by_expert.part(task.first, task.slots.size()), rows.bias_of(task.expert, bias), y.data,
                        rows.y_stride());
  });
}

}  // namespace agentkv::cpu
