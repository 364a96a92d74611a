#include "engine/batch.h"

#include <algorithm>

#include "engine/branch_table.h"
#include "engine/job.h"

namespace agentkv {

void Batch::clear() {
  entries_.clear();
  rows_ = prefill_left_ = entry_ = row_ = 0;
  returning_ = 0;
}

Cell Batch::free_cells() const { return branches_.free_cells() - static_cast<Cell>(rows_); }

void Batch::add(const BatchEntry& entry) {
  entries_.push_back(entry);
  const std::size_t rows = entry.tokens.size();
  rows_ += rows;
  if (!entry.branch) returning_ += static_cast<Cell>(rows);
  if (!entry.decode) prefill_left_ -= std::min(prefill_left_, rows);
}

void Batch::add_drafts() {
  for (const BatchEntry& entry : entries_) {
    if (!entry.draft) continue;
    entry.draft->cut(static_cast<std::size_t>(std::max(free_cells(), Cell{0})));
    rows_ += entry.draft_rows();
  }
}

std::size_t Batch::jobs() const {
  std::size_t jobs = 0;
  const Job* last = nullptr;  // a job's entries follow each other
  for (const BatchEntry& entry : entries_) {
    jobs += entry.job != last;
    last = entry.job;
  }
  return jobs;
}

bool Batch::next_forward(std::vector<Segment>& segments) {
  segments.clear();
  auto rows_left = static_cast<std::size_t>(info_.max_tokens);
  auto logits_left = static_cast<std::size_t>(info_.max_logits);
  for (; entry_ < entries_.size(); ++entry_, row_ = 0) {
    const BatchEntry& entry = entries_[entry_];
    if (entry.job->done() || row_ == entry.rows()) continue;
    const std::size_t silent =
        entry.first_logits > row_ ? entry.first_logits - row_ : 0;  // rows before the first logits
    const std::size_t count = std::min({entry.rows() - row_, rows_left, silent + logits_left});
    if (count == 0 || (entry.draft_rows() > 0 && count < entry.rows())) break;
    segments.push_back({&entry, row_, count});
    rows_left -= count;
    logits_left -= segments.back().logits_rows();
    row_ += count;
    if (row_ < entry.rows()) break;
  }
  return !segments.empty();
}

}  // namespace agentkv
