// The rows of one step: what the jobs offer, packed into as few forwards as the program's bounds allow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/branch.h"
#include "engine/draft.h"
#include "engine/model_runner.h"
#include "engine/types.h"

namespace agentkv {

class BranchTable;

// Tokens that extend one sequence, in order, and draft nodes that may follow the last of them. A forward may take any
// number of rows from the front of an entry without a draft; one with a draft goes through whole.
struct BatchEntry {
  Job* job = nullptr;
  SeqId seq = 0;
  Branch* branch = nullptr;       // the branch whose n_cached grows; null for a borrowed sequence
  std::span<const Token> tokens;  // stays valid until the step ends
  std::size_t first_logits = 0;   // rows from here on want logits
  std::size_t tag = 0;            // the job's own: which of its entries this is
  bool decode = false;
  bool history = false;    // tokens of the log whose cells were let go
  Draft* draft = nullptr;  // what add_drafts() may let follow

  std::size_t draft_rows() const { return draft ? draft->size() : 0; }
  std::size_t rows() const { return tokens.size() + draft_rows(); }
};

// Consecutive rows of one entry in one forward.
struct Segment {
  const BatchEntry* entry;
  std::size_t begin;
  std::size_t count;

  std::size_t plain_rows() const { return count - entry->draft_rows(); }
  std::size_t first_logits() const { return entry->first_logits > begin ? entry->first_logits : begin; }
  std::size_t logits_rows() const {
    const std::size_t end = begin + count;
    return first_logits() < end ? end - first_logits() : 0;
  }
};

// Results of a segment after its forward, for the job that offered it.
struct RowResults {
  const Segment& segment;
  std::span<const float> logits;  // [logits_rows, vocab]
  std::size_t vocab;
  std::vector<std::int32_t>& accepted;  // out: of an entry with a draft, the chain of nodes that came true

  std::span<const float> row(std::size_t feed_row) const {
    return logits.subspan((feed_row - segment.first_logits()) * vocab, vocab);
  }
};

class Batch {
 public:
  Batch(const BranchTable& branches, const RunnerInfo& info) : branches_(branches), info_(info) {}

  void clear();
  void set_prefill_budget(std::size_t rows) { prefill_left_ = rows; }

  Cell free_cells() const;                                      // not yet spoken for by rows of this batch
  Cell returning_cells() const { return returning_; }           // spoken for, but free again when the step ends
  std::size_t prefill_budget() const { return prefill_left_; }  // rows that prefill may still add
  void add(const BatchEntry& entry);                            // needs as many free cells as tokens
  // Gives the entries that lead into drafts their nodes, as far as cells are free, and cuts the drafts to that.
  void add_drafts();

  std::size_t rows() const { return rows_; }
  std::size_t jobs() const;

  // Fills `segments` with the next forward's, skipping entries of finished jobs. False when nothing is left.
  bool next_forward(std::vector<Segment>& segments);

 private:
  const BranchTable& branches_;
  const RunnerInfo& info_;
  std::vector<BatchEntry> entries_;
  std::size_t rows_ = 0;
  Cell returning_ = 0;
  std::size_t prefill_left_ = 0;
  std::size_t entry_ = 0;  // cursor of next_forward
  std::size_t row_ = 0;
};

}  // namespace agentkv
