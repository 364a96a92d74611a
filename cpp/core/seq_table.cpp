#include "core/seq_table.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {
namespace {

// Owner counts are 16 bits wide.
constexpr SeqId kMostSequences = std::numeric_limits<std::uint16_t>::max();

std::size_t checked_count(SeqId max_sequences) {
  if (max_sequences < 1 || max_sequences > kMostSequences) {
    throw InvalidRange(error_text("max_sequences is ", max_sequences, "; it must be in [1, ", kMostSequences, "]"));
  }
  return static_cast<std::size_t>(max_sequences);
}

}  // namespace

SeqTable::SeqTable(Cell capacity, SeqId max_sequences) : pool_(capacity), sequences_(checked_count(max_sequences)) {}

std::size_t SeqTable::checked(SeqId seq) const {
  if (seq < 0 || seq >= max_sequences()) {
    throw UnknownSequence(error_text("sequence ", seq, " is out of range [0, ", max_sequences(), ")"));
  }
  return static_cast<std::size_t>(seq);
}

void SeqTable::check_live(SeqId seq) const {
  if (sequences_[checked(seq)].empty()) throw UnknownSequence(error_text("sequence ", seq, " holds nothing"));
}

SeqTable::Range SeqTable::checked_range(const char* verb, SeqId seq, Pos p0, Pos p1) const {
  check_live(seq);
  const Pos length = end_position(sequences_[static_cast<std::size_t>(seq)]);
  const Pos last = p1 < 0 ? length : p1;
  if (p0 < 0 || p0 > last || last > length) {
    throw InvalidRange(error_text(verb, " of positions [", p0, ", ", last, ") of sequence ", seq,
                                  ", which holds positions below ", length));
  }
  return {p0, last};
}

SeqId SeqTable::live_sequences() const {
  return static_cast<SeqId>(
      std::count_if(sequences_.begin(), sequences_.end(), [](const RunList& runs) { return !runs.empty(); }));
}

void SeqTable::copy(SeqId src, SeqId dst, Pos p0, Pos p1) {
  const Range range = checked_range("seq_cp", src, p0, p1);
  RunList& to = sequences_[checked(dst)];
  const RunList& from = sequences_[static_cast<std::size_t>(src)];
  const std::size_t at = find_run(to, range.first);
  if (at < to.size() && range.first < range.last && to[at].position < range.last) {
    throw InvalidRange(error_text("seq_cp to positions [", range.first, ", ", range.last, ") of sequence ", dst,
                                  ", which already holds position ", std::max(to[at].position, range.first)));
  }
  const std::size_t begin = find_run(from, range.first);
  std::size_t end = begin;
  while (end < from.size() && from[end].position < range.last) ++end;
  if (begin == end) return;  // nothing but a hole

  scratch_.clear();
  scratch_.reserve(to.size() + (end - begin));
  scratch_.insert(scratch_.end(), to.begin(), to.begin() + static_cast<std::ptrdiff_t>(at));
  for (std::size_t i = begin; i < end; ++i) {
    const Run run = clip(from[i], range.first, range.last);
    pool_.share(run.cell, run.length);
    append_run(scratch_, run);
  }
  if (at < to.size()) {
    append_run(scratch_, to[at]);
    scratch_.insert(scratch_.end(), to.begin() + static_cast<std::ptrdiff_t>(at) + 1, to.end());
  }
  to.swap(scratch_);
}

void SeqTable::remove(SeqId seq, Pos p0, Pos p1) {
  const Range range = checked_range("seq_rm", seq, p0, p1);
  RunList& runs = sequences_[static_cast<std::size_t>(seq)];
  const std::size_t begin = find_run(runs, range.first);
  std::size_t end = begin;
  while (end < runs.size() && runs[end].position < range.last) ++end;
  if (begin == end || range.first == range.last) return;

  const Run before = clip(runs[begin], 0, range.first);
  const Run after = clip(runs[end - 1], range.last, end_position(runs[end - 1]));
  if (before.length > 0 && after.length > 0 && end - begin == 1) reserve_more(runs, 1);
  for (std::size_t i = begin; i < end; ++i) {
    const Run run = clip(runs[i], range.first, range.last);
    pool_.release(run.cell, run.length);
  }
  std::size_t write = begin;
  if (before.length > 0) runs[write++] = before;
  if (after.length > 0) {
    if (write == end) {
      runs.insert(runs.begin() + static_cast<std::ptrdiff_t>(write), after);
      ++end;
    } else {
      runs[write] = after;
    }
    ++write;
  }
  runs.erase(runs.begin() + static_cast<std::ptrdiff_t>(write), runs.begin() + static_cast<std::ptrdiff_t>(end));
}

void SeqTable::keep(SeqId seq) {
  check_live(seq);
  for (SeqId other = 0; other < max_sequences(); ++other) {
    if (other == seq) continue;
    RunList& runs = sequences_[static_cast<std::size_t>(other)];
    for (const Run& run : runs) pool_.release(run.cell, run.length);
    runs.clear();
  }
}

void SeqTable::clear() noexcept {
  for (RunList& runs : sequences_) runs.clear();
  pool_.clear();
}

void SeqTable::reserve(SeqId seq, std::size_t tokens) { reserve_more(sequences_[checked(seq)], tokens); }

void SeqTable::append(SeqId seq, Pos position, Cell cell) noexcept {
  pool_.take(cell);
  append_run(sequences_[static_cast<std::size_t>(seq)], {position, cell, 1});
}

}  // namespace agentkv
