#include <utility>

#include "core/errors.h"
#include "core/message.h"
#include "engine/jobs.h"

namespace agentkv {

SelectJob::SelectJob(JobId id, Branch& branch, JobContext& context, std::vector<std::vector<Token>> choices)
    : Job(id, branch, context),
      choices_(std::move(choices)),
      inputs_(choices_.size()),
      first_scores_(choices_.size()),
      rest_scores_(choices_.size()) {}

void SelectJob::prepare() {
  offered_ = false;
  if (!branch_.next_logits) context_.branches.take_last(branch_);
  if (!primed_ && branch_.next_logits) score_first_tokens(*branch_.next_logits);
  while (next_ < choices_.size() && choices_[next_].size() == 1) ++next_, ++scored_;
  finish_if_scored();
}

void SelectJob::offer(Batch& batch) {
  if (batch.prefill_budget() == 0) return;
  const auto pending = branch_.next_logits ? std::span<const Token>() : branch_.pending();
  if (!primed_ && !offer_prime(batch)) return;
  for (; next_ < choices_.size(); ++next_) {
    const auto& choice = choices_[next_];
    if (choice.size() == 1) {
      ++scored_;
      continue;
    }
    auto& input = inputs_[next_];
    input.assign(pending.begin(), pending.end());
    input.insert(input.end(), choice.begin(), choice.end() - 1);
    if (!offer_choice(batch, pending.size())) return;
  }
}

// The branch's own row scores every first token, and stays with the branch.
bool SelectJob::offer_prime(Batch& batch) {
  if (batch.free_cells() < 1) {
    no_room(1, batch.free_cells());
    return false;
  }
  batch.add({.job = this, .seq = branch_.seq, .branch = &branch_, .tokens = branch_.pending(), .tag = kPrime});
  offered_ = true;
  return true;
}

// A choice is begun and ended in one step. The first of a step rides whatever the budget says.
bool SelectJob::offer_choice(Batch& batch, std::size_t n_pending) {
  const std::vector<Token>& input = inputs_[next_];
  if (offered_ && input.size() > batch.prefill_budget()) return false;
  if (static_cast<Cell>(input.size()) > batch.free_cells()) {
    if (!offered_) no_room(static_cast<Cell>(input.size()), batch.free_cells());
    return false;
  }
  auto borrowed = context_.branches.borrow(branch_);
  if (!borrowed && offered_) return false;
  const SeqId seq =
      borrowed ? *borrowed : branch_.seq;  // with none to borrow the branch's own serves, one choice at a time
  if (borrowed) borrowed_.push_back(std::move(*borrowed));
  batch.add({.job = this, .seq = seq, .tokens = input, .first_logits = n_pending, .tag = next_});
  offered_ = true;
  return true;
}

void SelectJob::absorb(const RowResults& rows) {
  const BatchEntry& entry = *rows.segment.entry;
  if (entry.tag == kPrime) {
    branch_.next_logits = context_.rows.copy(rows.row(0));
    score_first_tokens(*branch_.next_logits);
  } else {
    const std::size_t end = rows.segment.begin + rows.segment.count;
    const std::vector<Token>& choice = choices_[entry.tag];
    for (std::size_t row = rows.segment.first_logits(); row < end; ++row) {
      rest_scores_[entry.tag] += log_probability(rows.row(row), choice[row - entry.first_logits + 1]);
    }
    if (end == entry.rows()) ++scored_;
  }
  finish_if_scored();
}

void SelectJob::score_first_tokens(std::span<const float> row) {
  const double normaliser = log_normaliser(row);
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    first_scores_[i] = static_cast<double>(row[static_cast<std::size_t>(choices_[i].front())]) - normaliser;
  }
  primed_ = true;
}

void SelectJob::finish_if_scored() {
  if (!primed_ || scored_ < choices_.size()) return;
  outcome_.scores.resize(choices_.size());
  for (std::size_t i = 0; i < choices_.size(); ++i) outcome_.scores[i] = first_scores_[i] + rest_scores_[i];
  finish();
}

void SelectJob::give_back() {
  borrowed_.clear();
  context_.branches.trim(branch_);
}

}  // namespace agentkv
