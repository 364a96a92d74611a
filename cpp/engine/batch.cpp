#include "engine/batch.h"

#include <algorithm>

#include "engine/branch_table.h"
#include "engine/job.h"

namespace agentkv {

void Batch::clear() {
  feeds_.clear();
  rows_ = prefill_left_ = feed_ = row_ = 0;
  returning_ = 0;
}

Cell Batch::free_cells() const { return branches_.free_cells() - static_cast<Cell>(rows_); }

void Batch::add(const Feed& feed) {
  feeds_.push_back(feed);
  const std::size_t rows = feed.tokens.size();
  rows_ += rows;
  if (!feed.branch) returning_ += static_cast<Cell>(rows);
  if (!feed.decode) prefill_left_ -= std::min(prefill_left_, rows);
}

void Batch::add_drafts() {
  for (const Feed& feed : feeds_) {
    if (!feed.draft) continue;
    feed.draft->cut(static_cast<std::size_t>(std::max(free_cells(), Cell{0})));
    rows_ += feed.draft_rows();
  }
}

std::size_t Batch::jobs() const {
  std::size_t jobs = 0;
  const Job* last = nullptr;  // a job's feeds follow each other
  for (const Feed& feed : feeds_) {
    jobs += feed.job != last;
    last = feed.job;
  }
  return jobs;
}

bool Batch::next_forward(std::vector<Segment>& segments) {
  segments.clear();
  auto rows_left = static_cast<std::size_t>(info_.max_tokens);
  auto logits_left = static_cast<std::size_t>(info_.max_logits);
  for (; feed_ < feeds_.size(); ++feed_, row_ = 0) {
    const Feed& feed = feeds_[feed_];
    if (feed.job->done() || row_ == feed.rows()) continue;
    const std::size_t silent = feed.first_logits > row_ ? feed.first_logits - row_ : 0;  // rows before the first logits
    const std::size_t count = std::min({feed.rows() - row_, rows_left, silent + logits_left});
    if (count == 0 || (feed.draft_rows() > 0 && count < feed.rows())) break;
    segments.push_back({&feed, row_, count});
    rows_left -= count;
    logits_left -= segments.back().logits_rows();
    row_ += count;
    if (row_ < feed.rows()) break;
  }
  return !segments.empty();
}

}  // namespace agentkv
