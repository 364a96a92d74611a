#include "core/step_rows.h"

namespace agentkv {

void StepRows::assign(std::span<const SeqId> seq_ids) {
  for (const SeqId seq : sequences_) group_of_[static_cast<std::size_t>(seq)] = -1;
  sequences_.clear();
  order_.resize(seq_ids.size());
  sequences_.reserve(seq_ids.size());
  fill_.clear();
  fill_.reserve(seq_ids.size());
  offsets_.reserve(seq_ids.size() + 1);

  for (const SeqId seq : seq_ids) {
    std::int32_t& group = group_of_[static_cast<std::size_t>(seq)];
    if (group < 0) {
      group = static_cast<std::int32_t>(sequences_.size());
      sequences_.push_back(seq);
      fill_.push_back(0);
    }
    ++fill_[static_cast<std::size_t>(group)];
  }
  offsets_.assign(1, 0);
  for (std::int32_t& count : fill_) {
    const std::int32_t begin = offsets_.back();
    offsets_.push_back(begin + count);
    count = begin;
  }
  for (std::size_t row = 0; row < seq_ids.size(); ++row) {
    const auto group = static_cast<std::size_t>(group_of_[static_cast<std::size_t>(seq_ids[row])]);
    order_[static_cast<std::size_t>(fill_[group]++)] = static_cast<std::int32_t>(row);
  }
}

}  // namespace agentkv
