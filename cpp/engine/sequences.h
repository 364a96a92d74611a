// The sequences of a cache: each is free, or has one owner.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/cache.h"

namespace agentkv {

class Sequences;

// A sequence with its owner. As the lease ends, whatever ends it, the sequence loses what it holds and is free again.
class SequenceLease {
 public:
  SequenceLease() = default;  // of no sequence
  SequenceLease(SequenceLease&& other) noexcept
      : sequences_(std::exchange(other.sequences_, nullptr)), id_(std::exchange(other.id_, -1)) {}
  SequenceLease& operator=(SequenceLease&& other) noexcept {
    std::swap(sequences_, other.sequences_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~SequenceLease();

  operator SeqId() const { return id_; }

 private:
  friend Sequences;
  SequenceLease(Sequences& sequences, SeqId id) : sequences_(&sequences), id_(id) {}

  Sequences* sequences_ = nullptr;
  SeqId id_ = -1;
};

// Outlives its leases.
class Sequences {
 public:
  explicit Sequences(std::shared_ptr<TreeSeqCache> cache);
  Sequences(const Sequences&) = delete;
  Sequences& operator=(const Sequences&) = delete;

  std::optional<SequenceLease> take();  // one that holds nothing; none where all have owners
  std::size_t free() const { return free_.size(); }
  std::size_t leased() const { return static_cast<std::size_t>(cache_->max_sequences()) - free_.size(); }
  // Throws std::logic_error unless those that are free are so once each, and hold nothing.
  void check() const;

 private:
  friend SequenceLease;
  void give_back(SeqId seq) noexcept;

  std::shared_ptr<TreeSeqCache> cache_;
  std::vector<SeqId> free_;
};

}  // namespace agentkv
