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

// Rows of x by expert, as the experts' weights meet them: those of one expert begin where kernels may begin.
class RowsByExpert {
 public:
  void assign(const HeadsView& x, const ExpertRows& rows, std::span<const ExpertTask> tasks, BlockType type,
              const ParallelFor& parallel_for) {
    inputs_ = static_cast<std::size_t>(x.dim);
    floats_.resize(std::max(floats_.size(), rows.of_x().size() * inputs_));
    for (float* at = floats_.data(); const std::int32_t row : rows.of_x()) {
      std::memcpy(at, x.data + static_cast<std::size_t>(row) * rows.x_stride(), inputs_ * sizeof(float));
      at += inputs_;
    }
    coded_ = meets_codes(type);
    if (!coded_) return;
    for (const ExpertTask& task : tasks) {
      if (task.panels.first != 0) continue;  // another task has the same rows
      const auto expert = static_cast<std::size_t>(task.expert);
      codes_.resize(std::max(codes_.size(), expert + 1));
      codes_[expert].assign(first_of(task), static_cast<int>(task.slots.size()), x.dim, inputs_, type, parallel_for);
    }
  }

  BlockRows of(const ExpertTask& task) const {
    const auto count = static_cast<int>(task.slots.size());
    if (coded_) return {.codes = codes_[static_cast<std::size_t>(task.expert)].view(), .count = count};
    return {.x = first_of(task), .stride = inputs_, .count = count};
  }

 private:
  const float* first_of(const ExpertTask& task) const { return floats_.data() + task.first * inputs_; }

  std::size_t inputs_ = 0;
  bool coded_ = false;
  std::vector<float> floats_;
  std::vector<ActivationBlocks> codes_;  // of each expert
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
  const std::vector<ExpertTask> tasks = rows.tasks(experts[0].panel_bytes());
  by_expert.assign(x, rows, tasks, shape.type, parallel_for);
  // The names of thread_local variables would be another thread's in there.
  run_tasks(tasks.size(), parallel_for, [&, &rows = rows, &by_expert = by_expert](std::size_t i) {
    const ExpertTask& task = tasks[i];
    multiply_into_slots(experts[static_cast<std::size_t>(task.expert)], task, by_expert.of(task),
                        rows.bias_of(task.expert, bias), y.data, rows.y_stride());
  });
}

}  // namespace agentkv::cpu
