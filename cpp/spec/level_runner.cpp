#include "spec/level_runner.h"

namespace agentkv {

LevelRunner::LevelRunner(TreeSeqCache& cache, std::int32_t max_tokens, std::int32_t max_logits)
    : cache_(cache),
      max_tokens_(static_cast<std::size_t>(max_tokens)),
      max_logits_(static_cast<std::size_t>(max_logits)) {}

void LevelRunner::clear() {
  seq_ids_.clear();
  tokens_.clear();
  parents_.clear();
  wants_logits_.clear();
}

void LevelRunner::add_plain(SeqId seq, Token token, bool wants_logits) {
  seq_ids_.push_back(seq);
  tokens_.push_back(token);
  parents_.push_back(kPlain);
  wants_logits_.push_back(wants_logits);
}

void LevelRunner::add_node(SeqId seq, Token token, std::int32_t parent) {
  add_plain(seq, token, true);
  parents_.back() = parent;
}

LevelRows LevelRunner::begin(std::size_t first) {
  logits_indices_.clear();
  std::size_t count = 0;
  for (; first + count < rows() && count < max_tokens_; ++count) {
    if (!wants_logits_[first + count]) continue;
    if (logits_indices_.size() == max_logits_) break;
    logits_indices_.push_back(static_cast<std::int64_t>(count));
  }
  try {
    propose(first, count);
    cache_.begin_step(std::span(seq_ids_).subspan(first, count));
  } catch (...) {
    cache_.abort_step();
    throw;
  }
  const auto positions = cache_.step_positions();
  positions_.assign(positions.begin(), positions.end());
  return {first, std::span(tokens_).subspan(first, count), positions_, logits_indices_};
}

void LevelRunner::propose(std::size_t first, std::size_t count) {
  for (std::size_t i = first; i < first + count;) {
    std::size_t end = i + 1;
    while (end < first + count && seq_ids_[end] == seq_ids_[i]) ++end;
    const auto parents = std::span<const std::int32_t>(parents_).subspan(i, end - i);
    if (parents.front() != kPlain) cache_.propose(parents, static_cast<std::int32_t>(parents.size()), seq_ids_[i]);
    i = end;
  }
}

}  // namespace agentkv
