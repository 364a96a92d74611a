// The rows of one step, grouped by sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/types.h"

namespace agentkv {

// A group is the rows of one sequence, in row order; groups are in the order of their first rows. All vectors are
// reused from step to step.
class StepRows {
 public:
  explicit StepRows(SeqId max_sequences) : group_of_(static_cast<std::size_t>(max_sequences), -1) {}

  void assign(std::span<const SeqId> seq_ids);  // every id in range

  std::int32_t n_rows() const { return static_cast<std::int32_t>(order_.size()); }
  std::int32_t n_groups() const { return static_cast<std::int32_t>(sequences_.size()); }
  SeqId sequence(std::int32_t group) const { return sequences_[static_cast<std::size_t>(group)]; }
  std::span<const std::int32_t> rows(std::int32_t group) const {
    const auto g = static_cast<std::size_t>(group);
    return {order_.data() + offsets_[g], order_.data() + offsets_[g + 1]};
  }

 private:
  std::vector<std::int32_t> group_of_;  // [max_sequences], -1 outside this step
  std::vector<SeqId> sequences_;        // [n_groups]
  std::vector<std::int32_t> offsets_;   // [n_groups + 1] into order_
  std::vector<std::int32_t> order_;     // [n_rows] row indices by group
  std::vector<std::int32_t> fill_;      // [n_groups]
};

}  // namespace agentkv
