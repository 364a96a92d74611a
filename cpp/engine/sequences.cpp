#include "engine/sequences.h"

#include "core/check_owners.h"

namespace agentkv {

SequenceLease::~SequenceLease() {
  if (sequences_) sequences_->give_back(id_);
}

Sequences::Sequences(std::shared_ptr<TreeSeqCache> cache) : cache_(std::move(cache)) {
  for (SeqId seq = cache_->max_sequences(); seq-- > 0;) free_.push_back(seq);
}

std::optional<SequenceLease> Sequences::take() {
  if (free_.empty()) return std::nullopt;
  const SeqId seq = free_.back();
  free_.pop_back();
  return SequenceLease(*this, seq);
}

void Sequences::give_back(SeqId seq) noexcept {
  if (cache_->seq_len(seq) > 0 || cache_->frontier_size(seq) > 0) cache_->seq_rm(seq);
  free_.push_back(seq);  // has room: the constructor filled it with every sequence
}

void Sequences::check() const {
  std::vector<bool> seen(static_cast<std::size_t>(cache_->max_sequences()));
  for (const SeqId seq : free_) {
    owners_agree(!seen[static_cast<std::size_t>(seq)], "sequence ", seq, " is free twice");
    owners_agree(cache_->seq_len(seq) == 0 && cache_->frontier_size(seq) == 0, "sequence ", seq, " is free and holds ",
                 cache_->seq_len(seq), " positions and ", cache_->frontier_size(seq), " draft nodes");
    seen[static_cast<std::size_t>(seq)] = true;
  }
}

}  // namespace agentkv
